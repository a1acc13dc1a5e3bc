// SPDX-License-Identifier: Apache-2.0
#include "shim/cuda/driver.h"

#include <dlfcn.h>
#include <atomic>
#include <initializer_list>

namespace deft::cuda {
namespace {

// The version whose signatures are declared in the header, and the flavour of the default stream:
// legacy, as NCCL treats a null stream.
constexpr int kApiVersion = 12000;
constexpr std::uint64_t kLegacyStream = 1;

using GetProcAddress2 = int (*)(const char*, void**, int, std::uint64_t, int*);
using GetProcAddress1 = int (*)(const char*, void**, int, std::uint64_t);

std::atomic<const Driver*> g_found{nullptr};

class Resolver {
public:
    explicit Resolver(void* library) : library_(library) {
        v2_ = reinterpret_cast<GetProcAddress2>(::dlsym(library, "cuGetProcAddress_v2"));
        v1_ = reinterpret_cast<GetProcAddress1>(::dlsym(library, "cuGetProcAddress"));
    }

    // `name` is the name without suffix, which cuGetProcAddress (CUDA 11.3) maps by version;
    // `exported` the symbol an older driver has for the same signature.
    template <typename F>
    void find(F& function, const char* name, const char* exported) {
        void* address = nullptr;
        if (v2_ != nullptr) {
            int status = 0;
            if (v2_(name, &address, kApiVersion, kLegacyStream, &status) != kSuccess) {
                address = nullptr;
            }
        } else if (v1_ != nullptr) {
            if (v1_(name, &address, 11030, kLegacyStream) != kSuccess) {
                address = nullptr;
            }
        }
        for (const char* symbol : {exported, name}) {
            if (address == nullptr) {
                address = ::dlsym(library_, symbol);
            }
        }
        function = reinterpret_cast<F>(address);
        complete_ = complete_ && address != nullptr;
    }

    bool complete() const { return complete_; }

private:
    void* library_;
    GetProcAddress2 v2_ = nullptr;
    GetProcAddress1 v1_ = nullptr;
    bool complete_ = true;
};

}  // namespace

const Driver* Driver::found() noexcept {
    return g_found.load(std::memory_order_acquire);
}

const Driver* Driver::get() noexcept {
    if (const Driver* driver = found()) {
        return driver;
    }
    void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) {
        return nullptr;
    }
    Resolver resolver(library);
    static constinit Driver driver;
    Driver filled;
    resolver.find(filled.DeviceGet, "cuDeviceGet", "cuDeviceGet");
    resolver.find(filled.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain",
                  "cuDevicePrimaryCtxRetain");
    resolver.find(filled.CtxGetCurrent, "cuCtxGetCurrent", "cuCtxGetCurrent");
    resolver.find(filled.CtxPushCurrent, "cuCtxPushCurrent", "cuCtxPushCurrent_v2");
    resolver.find(filled.CtxPopCurrent, "cuCtxPopCurrent", "cuCtxPopCurrent_v2");
    resolver.find(filled.StreamCreate, "cuStreamCreate", "cuStreamCreate");
    resolver.find(filled.StreamIsCapturing, "cuStreamIsCapturing", "cuStreamIsCapturing");
    resolver.find(filled.EventCreate, "cuEventCreate", "cuEventCreate");
    resolver.find(filled.EventRecord, "cuEventRecord", "cuEventRecord");
    resolver.find(filled.EventQuery, "cuEventQuery", "cuEventQuery");
    resolver.find(filled.EventElapsedTime, "cuEventElapsedTime", "cuEventElapsedTime");
    resolver.find(filled.ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode",
                  "cuThreadExchangeStreamCaptureMode");
    // The reference on the library is kept: the functions must stay.
    if (!resolver.complete()) {
        return nullptr;
    }
    static std::atomic_flag filling = ATOMIC_FLAG_INIT;
    if (!filling.test_and_set()) {
        driver = filled;
        g_found.store(&driver, std::memory_order_release);
    }
    return found();
}

Current::Current(const Driver& driver, Context context) noexcept : driver_(driver) {
    Context now = nullptr;
    if (driver_.CtxGetCurrent(&now) == kSuccess && now == context) {
        ok_ = true;
        return;
    }
    pushed_ = ok_ = driver_.CtxPushCurrent(context) == kSuccess;
}

Current::~Current() {
    if (pushed_) {
        Context ours = nullptr;
        driver_.CtxPopCurrent(&ours);
    }
}

bool recordable(const Driver& driver, Stream stream, bool& captured) noexcept {
    int status = 0;
    const int result = driver.StreamIsCapturing(stream, &status);
    captured = result == kStreamCaptureImplicit || (result == kSuccess && status != 0);
    return result == kSuccess && status == 0;
}

}  // namespace deft::cuda
