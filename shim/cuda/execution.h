// SPDX-License-Identifier: Apache-2.0
// The part of the driver API that moves data: found beside Driver, because a job that is only
// observed must not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/cuda/driver.h"

namespace deft::cuda {

using DevicePointer = std::uint64_t;            // CUdeviceptr
using Module = struct OpaqueModule*;            // CUmodule
using KernelFunction = struct OpaqueFunction*;  // CUfunction

enum : unsigned {
    kEventDisableTiming = 2,
    kHostAllocPortable = 1,
};
inline constexpr int kAttributeBufferId = 7;  // CU_POINTER_ATTRIBUTE_BUFFER_ID: of 64 bits

// CUDA_MEMCPY2D: rows of a width, each a pitch behind the one before, between device memory.
struct Copy2d {
    static constexpr int kDevice = 2;  // CU_MEMORYTYPE_DEVICE
    struct Side {
        std::size_t x = 0;
        std::size_t y = 0;
        int type = kDevice;
        void* host = nullptr;
        DevicePointer device = 0;
        void* array = nullptr;
        std::size_t pitch = 0;
    };
    Side from;
    Side to;
    std::size_t width = 0;
    std::size_t height = 0;
};

// Entry points; all are set in one that get() returns, but those said to be optional.
struct Execution {
    const Driver* driver = nullptr;
    int (*StreamCreateWithPriority)(Stream* stream, unsigned flags, int priority) = nullptr;
    int (*StreamGetPriority)(Stream stream, int* priority) = nullptr;
    int (*StreamDestroy)(Stream stream) = nullptr;
    int (*StreamWaitEvent)(Stream stream, Event event, unsigned flags) = nullptr;
    int (*StreamQuery)(Stream stream) = nullptr;
    int (*EventDestroy)(Event event) = nullptr;
    int (*MemAlloc)(DevicePointer* memory, std::size_t bytes) = nullptr;
    int (*MemFree)(DevicePointer memory) = nullptr;
    int (*MemAllocAsync)(DevicePointer* memory, std::size_t bytes,
                         Stream stream) = nullptr;                       // opt.
    int (*MemFreeAsync)(DevicePointer memory, Stream stream) = nullptr;  // opt.
    int (*MemGetInfo)(std::size_t* free, std::size_t* total) = nullptr;  // opt.
    int (*MemHostAlloc)(void** memory, std::size_t bytes, unsigned flags) = nullptr;
    int (*PointerGetAttribute)(void* value, int attribute,
                               DevicePointer pointer) = nullptr;  // opt.
    int (*MemcpyDtoDAsync)(DevicePointer to, DevicePointer from, std::size_t bytes,
                           Stream stream) = nullptr;
    int (*Memcpy2DAsync)(const Copy2d* copy, Stream stream) = nullptr;  // opt.
    int (*MemcpyDtoHAsync)(void* to, DevicePointer from, std::size_t bytes,
                           Stream stream) = nullptr;
    int (*MemcpyHtoDAsync)(DevicePointer to, const void* from, std::size_t bytes,
                           Stream stream) = nullptr;
    int (*MemsetD8Async)(DevicePointer to, unsigned char value, std::size_t bytes,
                         Stream stream) = nullptr;
    int (*ModuleLoadData)(Module* module, const void* image) = nullptr;
    int (*ModuleUnload)(Module module) = nullptr;
    int (*ModuleGetFunction)(KernelFunction* function, Module module, const char* name) = nullptr;
    int (*LaunchKernel)(KernelFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        Stream stream, void** parameters, void** extra) = nullptr;

    // As Driver::get(): null if the process has no driver, or one too old. Not for the hot path.
    static const Execution* get() noexcept;
};

// CUDA version the driver supports, 12030 for 12.3; 0 if there is no driver. Any thread.
int driver_version() noexcept;

// Bytes of the context's device that are free. False: it cannot be told. Not for the hot path.
bool free_memory(Context context, std::uint64_t& bytes) noexcept;

// The device's primary context, retained for good (the job's communicators live as long as the
// process). Null if the driver refuses.
Context primary_context(const Driver& driver, int ordinal) noexcept;

}  // namespace deft::cuda
