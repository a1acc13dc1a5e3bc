// SPDX-License-Identifier: Apache-2.0
// A CUDA driver and an NCCL that do nothing but count, for what concerns the executor alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "shim/executor/executor.h"

namespace deft::executor::test {

struct FakeCounts {
    std::atomic<std::uint64_t> calls{0};    // of the driver
    std::atomic<std::uint64_t> reduces{0};  // all-reduces
    std::atomic<bool> captured{false};
    std::atomic<bool> refuses{false};              // copies fail
    std::atomic<std::uintptr_t> foreign{0};        // a stream that refuses events, waits and copies
    std::atomic<std::uintptr_t> foreign_later{0};  // one that does from the next all-reduce on
    std::atomic<int> copies{0};                    // that were not refused
    std::atomic<bool> busy{false};                 // no event has happened yet
    std::atomic<bool> untimed{false};              // events that carry times are refused
    std::atomic<std::uint8_t> answer{1};           // what is copied to the host
    std::atomic<std::uintptr_t> sent{0};  // from where, in the last question to the other ranks
};
inline FakeCounts g_fake;

inline int counted() {
    g_fake.calls.fetch_add(1, std::memory_order_relaxed);
    return cuda::kSuccess;
}

// Of a call on this stream.
inline int counted_on(cuda::Stream stream) {
    const auto at = reinterpret_cast<std::uintptr_t>(stream);
    return at != 0 && g_fake.foreign == at ? 400 : counted();
}

template <typename T>
T* handle(std::uintptr_t value) {
    return reinterpret_cast<T*>(value);
}

inline const cuda::Driver& fake_driver() {
    static const cuda::Driver driver = [] {
        cuda::Driver d;
        d.DeviceGet = [](int* device, int ordinal) {
            *device = ordinal;
            return counted();
        };
        d.DevicePrimaryCtxRetain = [](cuda::Context* context, int) {
            *context = handle<cuda::OpaqueContext>(16);
            return counted();
        };
        d.CtxGetCurrent = [](cuda::Context* context) {
            *context = handle<cuda::OpaqueContext>(16);
            return counted();
        };
        d.CtxGetDevice = [](int* device) {
            *device = 0;
            return counted();
        };
        d.CtxPushCurrent = [](cuda::Context) { return counted(); };
        d.CtxPopCurrent = [](cuda::Context*) { return counted(); };
        d.StreamCreate = [](cuda::Stream* stream, unsigned) {
            *stream = handle<deft_cuda_stream>(32);
            return counted();
        };
        d.StreamIsCapturing = [](cuda::Stream, int* status) {
            *status = g_fake.captured ? 1 : 0;
            return counted();
        };
        d.EventCreate = [](cuda::Event* event, unsigned flags) {
            if (g_fake.untimed && (flags & cuda::kEventDisableTiming) == 0) {
                return 2;
            }
            *event = handle<cuda::OpaqueEvent>(48);
            return counted();
        };
        d.EventRecord = [](cuda::Event, cuda::Stream stream) { return counted_on(stream); };
        d.EventQuery = [](cuda::Event) { return g_fake.busy ? cuda::kNotReady : counted(); };
        d.EventElapsedTime = [](float* milliseconds, cuda::Event, cuda::Event) {
            *milliseconds = 2;
            return counted();
        };
        d.ThreadExchangeStreamCaptureMode = [](int*) { return counted(); };
        return d;
    }();
    return driver;
}

inline const cuda::Execution& fake_execution() {
    static const cuda::Execution execution = [] {
        cuda::Execution e;
        e.driver = &fake_driver();
        e.StreamCreateWithPriority = [](cuda::Stream* stream, unsigned, int) {
            *stream = handle<deft_cuda_stream>(64);
            return counted();
        };
        e.StreamGetPriority = [](cuda::Stream, int* priority) {
            *priority = 0;
            return counted();
        };
        e.StreamDestroy = [](cuda::Stream) { return counted(); };
        e.StreamWaitEvent = [](cuda::Stream stream, cuda::Event, unsigned) {
            return counted_on(stream);
        };
        e.StreamQuery = [](cuda::Stream) { return counted(); };
        e.EventDestroy = [](cuda::Event) { return counted(); };
        e.MemAlloc = [](cuda::DevicePointer* memory, std::size_t) {
            *memory = 1 << 20;
            return counted();
        };
        e.MemFree = [](cuda::DevicePointer) { return counted(); };
        e.MemHostAlloc = [](void** memory, std::size_t bytes, unsigned) {
            *memory = std::calloc(1, bytes);
            return counted();
        };
        e.PointerGetAttribute = [](void* value, int, cuda::DevicePointer pointer) {
            *static_cast<std::uint64_t*>(value) = pointer;
            return counted();
        };
        e.MemcpyDtoDAsync = [](cuda::DevicePointer, cuda::DevicePointer, std::size_t,
                               cuda::Stream stream) {
            if (g_fake.refuses) {
                return 700;
            }
            const int result = counted_on(stream);
            g_fake.copies += result == cuda::kSuccess ? 1 : 0;
            return result;
        };
        e.MemcpyDtoHAsync = [](void* to, cuda::DevicePointer, std::size_t bytes, cuda::Stream) {
            std::memset(to, g_fake.answer, bytes);
            return counted();
        };
        e.MemcpyHtoDAsync = [](cuda::DevicePointer, const void*, std::size_t, cuda::Stream) {
            return counted();
        };
        e.MemsetD8Async = [](cuda::DevicePointer, unsigned char, std::size_t, cuda::Stream) {
            return counted();
        };
        e.ModuleLoadData = [](cuda::Module* module, const void*) {
            *module = handle<cuda::OpaqueModule>(80);
            return counted();
        };
        e.ModuleUnload = [](cuda::Module) { return counted(); };
        e.ModuleGetFunction = [](cuda::KernelFunction* function, cuda::Module, const char*) {
            *function = handle<cuda::OpaqueFunction>(96);
            return counted();
        };
        e.LaunchKernel = [](cuda::KernelFunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, unsigned, cuda::Stream, void**, void**) { return counted(); };
        return e;
    }();
    return execution;
}

inline Nccl fake_nccl() {
    Nccl nccl;
    nccl.version = 22809;
    nccl.CommInitRank = [](deft_nccl_comm_t* comm, int, deft_nccl_unique_id_t, int) {
        *comm = handle<deft_nccl_comm>(112);
        return 0;
    };
    nccl.CommDestroy = [](deft_nccl_comm_t) { return 0; };
    nccl.CommAbort = [](deft_nccl_comm_t) { return 0; };
    nccl.AllReduce = [](const void* sent, void*, size_t, int type, int, deft_nccl_comm_t,
                        deft_cuda_stream_t) {
        if (type == DEFT_NCCL_UINT8) {
            g_fake.sent = reinterpret_cast<std::uintptr_t>(sent);
        }
        g_fake.reduces.fetch_add(1, std::memory_order_relaxed);
        if (const std::uintptr_t stream = g_fake.foreign_later.exchange(0)) {
            g_fake.foreign = stream;
        }
        return 0;
    };
    nccl.ReduceScatter = [](const void*, void*, size_t, int, int, deft_nccl_comm_t,
                            deft_cuda_stream_t) { return 0; };
    nccl.AllGather = [](const void*, void*, size_t, int, deft_nccl_comm_t, deft_cuda_stream_t) {
        return 0;
    };
    return nccl;
}

}  // namespace deft::executor::test
