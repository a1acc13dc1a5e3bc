// SPDX-License-Identifier: Apache-2.0
// Copies, fills, kernels by name, pointers, values in memory.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "softdev/cuda/bulk.h"
#include "tests/component/softdev/cuda/fixture.h"

namespace softdev::test {
namespace {

using Memory = SoftCuda;

TEST_F(Memory, CopiesThereAndBack) {
    std::vector<int> in(100000);
    std::iota(in.begin(), in.end(), 1);
    std::vector<int> out(in.size());
    const std::size_t bytes = in.size() * sizeof(int);
    const CUdeviceptr p = memory(bytes);
    const CUdeviceptr q = memory(bytes);
    ASSERT_EQ(cuMemcpyHtoD(p, in.data(), bytes), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyDtoD(q, p, bytes), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyDtoH(out.data(), q, bytes), CUDA_SUCCESS);
    EXPECT_EQ(in, out);
    ASSERT_EQ(cuMemsetD32(q, 0x01020304, in.size()), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyDtoH(out.data(), q, bytes), CUDA_SUCCESS);
    EXPECT_EQ(out.back(), 0x01020304);
}

template <typename T>
using FillCall = CUresult(CUDAAPI*)(CUdeviceptr, T, std::size_t);

template <typename T>
void fills_exactly(CUdeviceptr p, FillCall<T> fill) {
    constexpr std::size_t kMost = 10002;
    for (const std::size_t count : {1U, 511U, 1024U, 1025U, 4095U, 4096U, 4097U, 9999U}) {
        std::vector<T> wanted(kMost, T{0x5a});
        ASSERT_EQ(cuMemcpyHtoD(p, wanted.data(), kMost * sizeof(T)), CUDA_SUCCESS);
        std::fill_n(wanted.begin() + 1, count, static_cast<T>(0x01020384));
        ASSERT_EQ(fill(p + sizeof(T), static_cast<T>(0x01020384), count), CUDA_SUCCESS);
        std::vector<T> out(kMost);
        ASSERT_EQ(cuMemcpyDtoH(out.data(), p, kMost * sizeof(T)), CUDA_SUCCESS);
        ASSERT_EQ(out, wanted) << count << " of " << sizeof(T) << " bytes";
    }
}

TEST_F(Memory, AFillWritesWhatItIsToldAndNoMore) {
    const CUdeviceptr p = memory(10002 * sizeof(unsigned));
    fills_exactly<unsigned char>(p, cuMemsetD8);
    fills_exactly<unsigned short>(p, cuMemsetD16);
    fills_exactly<unsigned>(p, cuMemsetD32);
}

// Large ones are written past the caches, but for what lies before the first whole line and behind
// the last.
TEST_F(Memory, LargeCopiesAndFillsWriteWhatTheyAreToldAndNoMore) {
    constexpr std::size_t kRoom = (std::size_t{1} << 20) + 512;
    constexpr unsigned char kFree = 0xee;
    std::vector<unsigned char> source(kRoom);
    std::iota(source.begin(), source.end(), static_cast<unsigned char>(3));
    std::replace(source.begin(), source.end(), kFree, static_cast<unsigned char>(1));
    const CUdeviceptr from = memory(kRoom);
    const CUdeviceptr to = memory(kRoom);
    ASSERT_EQ(cuMemcpyHtoD(from, source.data(), kRoom), CUDA_SUCCESS);
    std::vector<unsigned char> out(kRoom);
    for (const std::size_t bytes : {kBulk - 1, kBulk, kBulk + 1, kBulk + 77777}) {
        for (const std::size_t at : {0U, 1U, 63U, 64U, 100U}) {
            for (const bool copies : {true, false}) {
                ASSERT_EQ(cuMemsetD8(to, kFree, kRoom), CUDA_SUCCESS);
                ASSERT_EQ(copies ? cuMemcpyDtoD(to + at, from + 5, bytes)
                                 : cuMemsetD8(to + at, 0x42, bytes),
                          CUDA_SUCCESS);
                ASSERT_EQ(cuMemcpyDtoH(out.data(), to, kRoom), CUDA_SUCCESS);
                std::vector<unsigned char> wanted(kRoom, kFree);
                copies ? std::copy_n(source.begin() + 5, bytes, wanted.begin() + at)
                       : std::fill_n(wanted.begin() + at, bytes, static_cast<unsigned char>(0x42));
                ASSERT_TRUE(out == wanted) << bytes << " bytes at " << at;
            }
        }
    }
}

TEST_F(Memory, ALargeCopyMayOverlap) {
    std::vector<unsigned> in(std::size_t{1} << 19);
    std::iota(in.begin(), in.end(), 1U);
    std::vector<unsigned> out(in.size());
    for (const bool up : {true, false}) {
        const CUdeviceptr p = memory(in.size() * 4 + 400);
        ASSERT_EQ(cuMemcpyHtoD(p + (up ? 0 : 400), in.data(), in.size() * 4), CUDA_SUCCESS);
        ASSERT_EQ(cuMemcpyDtoD(p + (up ? 400 : 0), p + (up ? 0 : 400), in.size() * 4),
                  CUDA_SUCCESS);
        ASSERT_EQ(cuMemcpyDtoH(out.data(), p + (up ? 400 : 0), in.size() * 4), CUDA_SUCCESS);
        EXPECT_TRUE(in == out) << up;
    }
}

TEST_F(Memory, AnAsynchronousCopyHasTakenItsPageableSourceWhenItReturns) {
    const CUstream s = stream();
    const CUdeviceptr p = memory(16);
    Gate gate;
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    char text[16] = "before";
    ASSERT_EQ(cuMemcpyHtoDAsync(p, text, sizeof text, s), CUDA_SUCCESS);
    std::strcpy(text, "after");
    gate.open();
    char result[16] = "";
    ASSERT_EQ(cuMemcpyDtoHAsync(result, p, sizeof result, s), CUDA_SUCCESS);
    EXPECT_STREQ(result, "before") << "to pageable memory the call itself waits";
}

// A kernel may run until another thread does something, and that thread may free first.
TEST_F(Memory, FreeingPinnedMemoryDoesNotWaitForAKernel) {
    const CUstream s = stream();
    void* pinned = nullptr;
    ASSERT_EQ(cuMemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
    Gate gate;
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
    *static_cast<volatile char*>(pinned) = 1;  // as the kernel may still do
    expect_reports(2);
    EXPECT_EQ(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE) << "a second time";
    gate.open();
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE) << "it is gone";
    void* registered = std::malloc(4096);
    ASSERT_EQ(cuMemHostRegister(registered, 4096, 0), CUDA_SUCCESS);
    Gate again;
    ASSERT_EQ(again.hold(s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostUnregister(registered), CUDA_SUCCESS);
    std::free(registered);
}

TEST_F(Memory, PinnedMemoryStaysWhileAnyContextWorks) {
    void* pinned = nullptr;
    ASSERT_EQ(cuMemHostAlloc(&pinned, 64, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
    CUcontext other = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(other), CUDA_SUCCESS);
    const CUstream s = stream();
    Gate gate;
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
    *static_cast<volatile char*>(pinned) = 1;  // as the other device may still do
    gate.open();
    EXPECT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
    expect_reports(1);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("uses freed memory"))
        << "it is gone when the work is";
}

TEST_F(Memory, AReportNamesTheCallThatFrees) {
    const CUstream s = stream();
    void* pinned = nullptr;
    ASSERT_EQ(cuMemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
    Gate gate;
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
    expect_reports(1);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(pinned), 0, 64, s),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                ::testing::HasSubstr("which cuMemFreeHost frees"));
}

TEST_F(Memory, NothingIsKnownOfPinnedMemoryThatIsFreed) {
    const CUstream s = stream();
    void* pinned = nullptr;
    ASSERT_EQ(cuMemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
    const auto address = reinterpret_cast<CUdeviceptr>(pinned);
    Gate gate;
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
    unsigned type = 1;
    EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
              CUDA_ERROR_INVALID_VALUE);
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void* values[] = {&type};
    EXPECT_EQ(cuPointerGetAttributes(1, names, values, address), CUDA_SUCCESS);
    EXPECT_EQ(type, 0u);
    CUdeviceptr found = 0;
    unsigned flags = 0;
    std::size_t bytes = 0;
    EXPECT_EQ(cuMemHostGetDevicePointer(&found, pinned, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemHostGetFlags(&flags, pinned), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemGetAddressRange(&found, &bytes, address), CUDA_ERROR_NOT_FOUND);
}

TEST_F(Memory, TellsTheGranularityOfWhatItCannotMap) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    std::size_t granularity = 0;
    EXPECT_EQ(cuMemGetAllocationGranularity(&granularity, &properties,
                                            CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
              CUDA_SUCCESS);
    EXPECT_EQ(granularity, std::size_t{2} << 20);
    void* entry = nullptr;
    EXPECT_EQ(cuGetProcAddress("cuMemGetAllocationGranularity", &entry, 12000, 0, nullptr),
              CUDA_SUCCESS);
    EXPECT_NE(entry, nullptr);
}

TEST_F(Memory, KnowsItsRangesAndPointers) {
    const CUdeviceptr p = memory(1000);
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    EXPECT_EQ(cuMemGetAddressRange(&base, &bytes, p + 999), CUDA_SUCCESS);
    EXPECT_EQ(base, p);
    EXPECT_EQ(bytes, 1000u);
    EXPECT_EQ(cuMemGetAddressRange(&base, &bytes, p + 1000), CUDA_ERROR_NOT_FOUND);
    unsigned type = 0;
    EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p), CUDA_SUCCESS);
    EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    void* pinned = nullptr;
    ASSERT_EQ(cuMemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(pinned)),
              CUDA_SUCCESS);
    EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
    int local = 0;
    const auto plain = reinterpret_cast<CUdeviceptr>(&local);
    EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, plain),
              CUDA_ERROR_INVALID_VALUE);
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void* values[] = {&type};
    EXPECT_EQ(cuPointerGetAttributes(1, names, values, plain), CUDA_SUCCESS);
    EXPECT_EQ(type, 0u);
    EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
    std::size_t free = 0;
    std::size_t total = 0;
    ASSERT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    CUdeviceptr huge = 0;
    EXPECT_EQ(cuMemAlloc(&huge, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
}

void add_kernel(const unsigned grid[3], const unsigned block[3], void** args) {
    auto* to = *static_cast<float**>(args[0]);
    const float value = *static_cast<float*>(args[1]);
    const int count = *static_cast<int*>(args[2]);
    for (int i = 0; i < count && i < static_cast<int>(grid[0] * block[0]); ++i) {
        to[i] += value;
    }
}

std::size_t add_accesses(const unsigned*, const unsigned*, void** args, softdev_access_t* out,
                         std::size_t max) {
    if (max > 0) {
        out[0] = {*static_cast<void**>(args[0]),
                  sizeof(float) * static_cast<std::size_t>(*static_cast<int*>(args[2])), 1};
    }
    return 1;
}

TEST_F(Memory, RefusesShapesAndFlagsThatADeviceRefuses) {
    void* host = nullptr;
    EXPECT_EQ(cuMemHostAlloc(&host, 64, 0x100), CUDA_ERROR_INVALID_VALUE);
    CUmodule module = nullptr;
    CUfunction spin = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&spin, module, "softdev_spin_ns"), CUDA_SUCCESS);
    unsigned long long ns = 1;
    void* arguments[] = {&ns};
    const auto launch = [&](unsigned y, unsigned block_z) {
        return cuLaunchKernel(spin, 1, y, 1, 1, 1, block_z, 0, stream(), arguments, nullptr);
    };
    EXPECT_EQ(launch(65536, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(launch(1, 65), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(launch(65535, 64), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(Memory, RunsKernelsByName) {
    const char* name = "_Z3addPffi";
    softdevRegisterKernel(name, add_kernel);
    softdevRegisterKernelAccesses(name, add_accesses);
    CUlibrary library = nullptr;
    ASSERT_EQ(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0),
              CUDA_SUCCESS);
    CUkernel kernel = nullptr;
    EXPECT_EQ(cuLibraryGetKernel(&kernel, library, "unknown"), CUDA_ERROR_NOT_FOUND);
    ASSERT_EQ(cuLibraryGetKernel(&kernel, library, name), CUDA_SUCCESS);
    const auto function = reinterpret_cast<CUfunction>(kernel);
    const CUstream s = stream();
    CUdeviceptr p = memory(8 * sizeof(float));
    ASSERT_EQ(cuMemsetD8Async(p, 0, 8 * sizeof(float), s), CUDA_SUCCESS);
    Gate gate;
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    float value = 1.5f;
    int count = 8;
    void* parameters[] = {&p, &value, &count};
    ASSERT_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, s, parameters, nullptr), CUDA_SUCCESS);
    value = 99;  // the launch has taken its copy
    gate.open();
    float result[8] = {};
    ASSERT_EQ(cuMemcpyDtoHAsync(result, p, sizeof result, s), CUDA_SUCCESS);
    EXPECT_EQ(result[7], 1.5f);
    // Declared accesses are checked like any others.
    count = 9;
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, s, parameters, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, s, parameters, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, parameters, nullptr),
              CUDA_ERROR_INVALID_HANDLE);
    expect_reports(2);
}

TEST_F(Memory, StreamsWaitForValues) {
    const CUstream writer = stream();
    const CUstream waiter = stream();
    const CUdeviceptr word = memory(4);
    const CUdeviceptr data = memory(4);
    ASSERT_EQ(cuMemsetD32(word, 0, 1), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitValue32(waiter, word, 5, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    int out = 0;
    std::thread reader([&] {
        ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
        ASSERT_EQ(cuMemcpyDtoHAsync(&out, data, 4, waiter), CUDA_SUCCESS);
    });
    EXPECT_EQ(cuStreamQuery(waiter), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(cuMemsetD32Async(data, 42, 1, writer), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWriteValue32(writer, word, 5, 0), CUDA_SUCCESS);
    reader.join();
    EXPECT_EQ(out, 42);
}

TEST_F(Memory, ThreadsOnManyStreamsKeepTheirSums) {
    constexpr int kThreads = 4;
    constexpr int kRounds = 200;
    softdevRegisterKernel("_Z3addPffi", add_kernel);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([this, t] {
            ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
            CUmodule module = nullptr;
            ASSERT_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
            CUfunction add = nullptr;
            ASSERT_EQ(cuModuleGetFunction(&add, module, "_Z3addPffi"), CUDA_SUCCESS);
            CUstream streams[3] = {stream(), stream(CU_STREAM_DEFAULT), CU_STREAM_PER_THREAD};
            CUevent e = event();
            CUdeviceptr p = 0;
            ASSERT_EQ(cuMemAllocAsync(&p, 4, streams[0]), CUDA_SUCCESS);
            ASSERT_EQ(cuMemsetD32Async(p, 0, 1, streams[0]), CUDA_SUCCESS);
            float one = 1;
            int count = 1;
            void* parameters[] = {&p, &one, &count};
            int last = 0;
            for (int i = 0; i < kRounds; ++i) {
                const int next = (i + t) % 3;
                ASSERT_EQ(cuEventRecord(e, streams[last]), CUDA_SUCCESS);
                ASSERT_EQ(cuStreamWaitEvent(streams[next], e, 0), CUDA_SUCCESS);
                ASSERT_EQ(
                    cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, streams[next], parameters, nullptr),
                    CUDA_SUCCESS);
                last = next;
                if (i % 50 == 0) {
                    ASSERT_EQ(cuStreamSynchronize(streams[next]), CUDA_SUCCESS);
                }
            }
            float sum = 0;
            ASSERT_EQ(cuMemcpyDtoHAsync(&sum, p, 4, streams[last]), CUDA_SUCCESS);
            EXPECT_EQ(sum, 200) << "kRounds additions";
            ASSERT_EQ(cuMemFreeAsync(p, streams[last]), CUDA_SUCCESS);
            ASSERT_EQ(cuStreamDestroy(streams[0]), CUDA_SUCCESS);
            ASSERT_EQ(cuStreamDestroy(streams[1]), CUDA_SUCCESS);
            ASSERT_EQ(cuEventDestroy(e), CUDA_SUCCESS);
            ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

}  // namespace
}  // namespace softdev::test
