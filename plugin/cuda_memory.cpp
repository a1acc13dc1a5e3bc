// SPDX-License-Identifier: Apache-2.0
#include "plugin/cuda_memory.h"

#include <dlfcn.h>

#include <cstdint>

#include "base/log.h"

namespace deft::net {

using CUdeviceptr = unsigned long long;

// As cuda.h has them.
struct CudaMemory::Driver {
    int (*pointer_attribute)(void* out, int attribute, CUdeviceptr pointer);
    int (*device_get)(int* device, int ordinal);
    int (*primary_retain)(void** context, int device);
    int (*push)(void* context);
    int (*pop)(void** context);
    int (*capture_mode)(int* mode);
    int (*stream_create)(void** stream, unsigned flags);
    int (*stream_wait)(void* stream);
    int (*copy_in)(CUdeviceptr to, const void* from, std::size_t bytes, void* stream);
    int (*copy_out)(void* to, CUdeviceptr from, std::size_t bytes, void* stream);
    int (*flush)(int target, int scope);  // from CUDA 11.3 on; NULL before
};

namespace {

constexpr int kDeviceOrdinal = 9;     // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kRelaxed = 2;           // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr int kCurrentContext = 0;    // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
constexpr int kToAllDevices = 200;    // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES

CUdeviceptr address_of(const void* gpu) {
    return reinterpret_cast<std::uintptr_t>(gpu);
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
}

bool fill(void* library, CudaMemory::Driver& driver) {
    (void)find(library, "cuFlushGPUDirectRDMAWrites", driver.flush);
    return find(library, "cuPointerGetAttribute", driver.pointer_attribute) &&
           find(library, "cuDeviceGet", driver.device_get) &&
           find(library, "cuDevicePrimaryCtxRetain", driver.primary_retain) &&
           find(library, "cuCtxPushCurrent_v2", driver.push) &&
           find(library, "cuCtxPopCurrent_v2", driver.pop) &&
           find(library, "cuThreadExchangeStreamCaptureMode", driver.capture_mode) &&
           find(library, "cuStreamCreate", driver.stream_create) &&
           find(library, "cuStreamSynchronize", driver.stream_wait) &&
           find(library, "cuMemcpyHtoDAsync_v2", driver.copy_in) &&
           find(library, "cuMemcpyDtoHAsync_v2", driver.copy_out);
}

}  // namespace

// The calling thread in a GPU's context, and free to call the driver while the job captures a
// graph.
class CudaMemory::Inside {
public:
    Inside(const Driver& driver, void* context) : driver_(driver) {
        (void)driver_.capture_mode(&mode_);
        pushed_ = driver_.push(context) == 0;
    }
    ~Inside() {
        void* context = nullptr;
        if (pushed_) {
            (void)driver_.pop(&context);
        }
        (void)driver_.capture_mode(&mode_);
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

private:
    const Driver& driver_;
    int mode_ = kRelaxed;
    bool pushed_ = false;
};

CudaMemory* CudaMemory::process() {
    static CudaMemory* const memory = []() -> CudaMemory* {
        // The reference stays: so do the functions.
        void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        static Driver driver{};
        return library != nullptr && fill(library, driver) ? new CudaMemory(driver) : nullptr;
    }();
    return memory;
}

bool CudaMemory::check(int result, const char* call) const {
    if (result != 0) {
        DEFT_WARN("the memory of a GPU: %s: CUDA error %d", call, result);
    }
    return result == 0;
}

int CudaMemory::number_of(const void* gpu) const {
    int number = -1;
    const bool known = check(driver_.pointer_attribute(&number, kDeviceOrdinal, address_of(gpu)),
                             "cuPointerGetAttribute");
    return known && number >= 0 && number < static_cast<int>(kMostGpus) ? number : -1;
}

CudaMemory::Gpu* CudaMemory::of(const void* gpu) {
    const int number = number_of(gpu);
    if (number < 0) {
        return nullptr;
    }
    Gpu& one = gpus_[static_cast<std::size_t>(number)];
    const MutexLock lock(one.mutex);
    return open(one, number) ? &one : nullptr;
}

bool CudaMemory::open(Gpu& gpu, int number) {
    if (gpu.stream != nullptr) {
        return true;
    }
    int device = 0;
    if (!check(driver_.device_get(&device, number), "cuDeviceGet") ||
        !check(driver_.primary_retain(&gpu.context, device), "cuDevicePrimaryCtxRetain")) {
        return false;
    }
    const Inside inside(driver_, gpu.context);
    return check(driver_.stream_create(&gpu.stream, kNonBlocking), "cuStreamCreate");
}

void CudaMemory::prepare(const void* gpu) {
    (void)of(gpu);
}

bool CudaMemory::put(void* gpu, const void* host, std::size_t bytes) {
    Gpu* const one = of(gpu);
    if (one == nullptr) {
        return false;
    }
    const MutexLock lock(one->mutex);
    const Inside inside(driver_, one->context);
    return check(driver_.copy_in(address_of(gpu), host, bytes, one->stream), "cuMemcpyHtoDAsync") &&
           check(driver_.stream_wait(one->stream), "cuStreamSynchronize");
}

bool CudaMemory::get(void* host, const void* gpu, std::size_t bytes) {
    Gpu* const one = of(gpu);
    if (one == nullptr) {
        return false;
    }
    const MutexLock lock(one->mutex);
    const Inside inside(driver_, one->context);
    return check(driver_.copy_out(host, address_of(gpu), bytes, one->stream),
                 "cuMemcpyDtoHAsync") &&
           check(driver_.stream_wait(one->stream), "cuStreamSynchronize");
}

bool CudaMemory::flush(const void* gpu) {
    Gpu* const one = driver_.flush == nullptr ? nullptr : of(gpu);
    if (one == nullptr) {
        return false;
    }
    const MutexLock lock(one->mutex);
    const Inside inside(driver_, one->context);
    const int result = driver_.flush(kCurrentContext, kToAllDevices);
    if (result != 0) {
        DEFT_WARN_ONCE("the memory of a GPU: cuFlushGPUDirectRDMAWrites: CUDA error %d", result);
    }
    return result == 0;
}

}  // namespace deft::net
