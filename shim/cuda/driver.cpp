// SPDX-License-Identifier: Apache-2.0
#include "shim/cuda/driver.h"

#include <dlfcn.h>
#include <atomic>

#include "shim/cuda/resolver.h"

namespace deft::cuda {
namespace {

std::atomic<const Driver*> g_found{nullptr};

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
    resolver.find(filled.CtxGetDevice, "cuCtxGetDevice", "cuCtxGetDevice");
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

int current_device() noexcept {
    const Driver* const driver = Driver::get();
    int device = -1;
    return driver != nullptr && driver->CtxGetDevice(&device) == kSuccess ? device : -1;
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
