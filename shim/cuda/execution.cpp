// SPDX-License-Identifier: Apache-2.0
#include "shim/cuda/execution.h"

#include <dlfcn.h>
#include <atomic>

#include "shim/cuda/resolver.h"

namespace deft::cuda {
namespace {

std::atomic<const Execution*> g_execution{nullptr};

}  // namespace

const Execution* Execution::get() noexcept {
    if (const Execution* found = g_execution.load(std::memory_order_acquire)) {
        return found;
    }
    const Driver* const driver = Driver::get();
    void* const library =
        driver != nullptr ? ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    if (library == nullptr) {
        return nullptr;
    }
    Resolver resolver(library);
    Execution filled;
    filled.driver = driver;
    resolver.find(filled.StreamCreateWithPriority, "cuStreamCreateWithPriority",
                  "cuStreamCreateWithPriority");
    resolver.find(filled.StreamGetPriority, "cuStreamGetPriority", "cuStreamGetPriority");
    resolver.find(filled.StreamDestroy, "cuStreamDestroy", "cuStreamDestroy_v2");
    resolver.find(filled.StreamWaitEvent, "cuStreamWaitEvent", "cuStreamWaitEvent");
    resolver.find(filled.StreamQuery, "cuStreamQuery", "cuStreamQuery");
    resolver.find(filled.EventDestroy, "cuEventDestroy", "cuEventDestroy_v2");
    resolver.find(filled.MemAlloc, "cuMemAlloc", "cuMemAlloc_v2");
    resolver.find(filled.MemFree, "cuMemFree", "cuMemFree_v2");
    resolver.look(filled.MemAllocAsync, "cuMemAllocAsync", "cuMemAllocAsync");
    resolver.look(filled.MemFreeAsync, "cuMemFreeAsync", "cuMemFreeAsync");
    resolver.look(filled.MemGetInfo, "cuMemGetInfo", "cuMemGetInfo_v2");
    resolver.find(filled.MemHostAlloc, "cuMemHostAlloc", "cuMemHostAlloc");
    resolver.look(filled.PointerGetAttribute, "cuPointerGetAttribute", "cuPointerGetAttribute");
    resolver.find(filled.MemcpyDtoDAsync, "cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2");
    resolver.look(filled.Memcpy2DAsync, "cuMemcpy2DAsync", "cuMemcpy2DAsync_v2");
    resolver.find(filled.MemcpyDtoHAsync, "cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2");
    resolver.find(filled.MemcpyHtoDAsync, "cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2");
    resolver.find(filled.MemsetD8Async, "cuMemsetD8Async", "cuMemsetD8Async");
    resolver.find(filled.ModuleLoadData, "cuModuleLoadData", "cuModuleLoadData");
    resolver.find(filled.ModuleUnload, "cuModuleUnload", "cuModuleUnload");
    resolver.find(filled.ModuleGetFunction, "cuModuleGetFunction", "cuModuleGetFunction");
    resolver.find(filled.LaunchKernel, "cuLaunchKernel", "cuLaunchKernel");
    if (!resolver.complete()) {
        return nullptr;
    }
    static constinit Execution execution;
    static std::atomic_flag filling = ATOMIC_FLAG_INIT;
    if (!filling.test_and_set()) {
        execution = filled;
        g_execution.store(&execution, std::memory_order_release);
    }
    return g_execution.load(std::memory_order_acquire);
}

int driver_version() noexcept {
    void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    auto* const get = library != nullptr
                          ? reinterpret_cast<int (*)(int*)>(::dlsym(library, "cuDriverGetVersion"))
                          : nullptr;
    int version = 0;
    return get != nullptr && get(&version) == kSuccess ? version : 0;
}

bool free_memory(Context context, std::uint64_t& bytes) noexcept {
    const Execution* const driver = Execution::get();
    if (driver == nullptr || driver->MemGetInfo == nullptr || context == nullptr) {
        return false;
    }
    const Relaxed relaxed(*driver->driver);  // the job may be capturing
    const Current current(*driver->driver, context);
    std::size_t free = 0;
    std::size_t total = 0;
    if (!current || driver->MemGetInfo(&free, &total) != kSuccess) {
        return false;
    }
    bytes = free;
    return true;
}

Context primary_context(const Driver& driver, int ordinal) noexcept {
    int device = 0;
    Context context = nullptr;
    if (driver.DeviceGet(&device, ordinal) != kSuccess ||
        driver.DevicePrimaryCtxRetain(&context, device) != kSuccess) {
        return nullptr;
    }
    return context;
}

}  // namespace deft::cuda
