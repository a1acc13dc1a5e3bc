// SPDX-License-Identifier: Apache-2.0
// The runtime library, where it is more than the driver under another name.
#pragma GCC visibility push(default)
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#pragma GCC visibility pop
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "softdev/cuda/softdev.h"

extern "C" void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*,
                                       dim3*, dim3*, int*);

namespace {

// Libraries name them, and are not loaded where they lack.
TEST(Runtime, WhatTheDeviceDoesNotHaveIsThereAndSaysSo) {
    EXPECT_EQ(cudaProfilerStart(), cudaErrorNotSupported);
    EXPECT_EQ(cudaLibraryUnload(nullptr), cudaErrorNotSupported);
    int blocks = 7;
    EXPECT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nullptr, 1, 0),
              cudaErrorNotSupported);
    EXPECT_EQ(blocks, 7);
}

TEST(Runtime, NothingIsAPointerThatCudaDoesNotKnow) {
    cudaPointerAttributes attributes;
    ASSERT_EQ(cudaPointerGetAttributes(&attributes, nullptr), cudaSuccess);
    EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
    EXPECT_EQ(attributes.devicePointer, nullptr);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(Runtime, AStubLeadsToItsFunction) {
    static char stub;
    static char unknown;
    static int runs = 0;
    softdevRegisterKernelSized(
        "runtime_test_kernel", [](const unsigned*, const unsigned*, void**) { ++runs; }, nullptr,
        0);
    __cudaRegisterFunction(nullptr, &stub, nullptr, "runtime_test_kernel", 0, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
    cudaFunction_t function = nullptr;
    ASSERT_EQ(cudaGetFuncBySymbol(&function, &stub), cudaSuccess);
    ASSERT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
              CUDA_SUCCESS);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(cudaGetFuncBySymbol(&function, &unknown), cudaErrorInvalidDeviceFunction);
    cudaGetLastError();
}

TEST(Runtime, ThreadsMayResolveOneKernelAtATime) {
    static char stub;
    softdevRegisterKernelSized(
        "runtime_test_shared", [](const unsigned*, const unsigned*, void**) {}, nullptr, 0);
    __cudaRegisterFunction(nullptr, &stub, nullptr, "runtime_test_shared", 0, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
    std::atomic<int> without{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int times = 0; times < 200000; ++times) {
                cudaFunction_t function = nullptr;
                if (cudaGetFuncBySymbol(&function, &stub) != cudaSuccess || function == nullptr) {
                    ++without;
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(without, 0);
}

TEST(Runtime, MemoryComesFromAPool) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool = nullptr;
    ASSERT_EQ(cudaMemPoolCreate(&pool, &properties), cudaSuccess);
    unsigned long long threshold = ~0ull;
    EXPECT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
              cudaSuccess);
    unsigned long long read = 0;
    EXPECT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &read), cudaSuccess);
    EXPECT_EQ(read, threshold);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    void* memory = nullptr;
    ASSERT_EQ(cudaMallocFromPoolAsync(&memory, 1000, pool, stream), cudaSuccess);
    EXPECT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &read), cudaSuccess);
    EXPECT_EQ(read, 1000u);
    EXPECT_EQ(cudaFreeAsync(memory, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(Runtime, NothingIsSharedBetweenProcesses) {
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
    cudaIpcMemHandle_t handle = {};
    EXPECT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaErrorNotSupported);
    void* opened = nullptr;
    EXPECT_EQ(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess),
              cudaErrorNotSupported);
    EXPECT_EQ(cudaIpcCloseMemHandle(memory), cudaErrorNotSupported);
    cudaGetLastError();
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST(Runtime, CopiesComeInBatches) {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
    auto* const bytes = static_cast<unsigned char*>(memory);
    ASSERT_EQ(cudaMemset(memory, 0, 64), cudaSuccess);
    ASSERT_EQ(cudaMemset(memory, 3, 16), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    void* to[] = {bytes + 16, bytes + 48};
    const void* from[] = {bytes, bytes + 4};
    std::size_t sizes[] = {8, 4};
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    ASSERT_EQ(cudaMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, stream),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    unsigned char host[64] = {};
    ASSERT_EQ(cudaMemcpy(host, memory, 64, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(host[16], 3);
    EXPECT_EQ(host[23], 3);
    EXPECT_EQ(host[24], 0);
    EXPECT_EQ(host[51], 3);
    EXPECT_EQ(host[52], 0);
    EXPECT_EQ(cudaMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, nullptr),
              cudaErrorInvalidValue)
        << "the legacy stream takes none";
    cudaGetLastError();
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(Runtime, LimitsAreKept) {
    EXPECT_EQ(cudaDeviceSetLimit(cudaLimitStackSize, 4096), cudaSuccess);
    std::size_t value = 0;
    EXPECT_EQ(cudaDeviceGetLimit(&value, cudaLimitStackSize), cudaSuccess);
    EXPECT_EQ(value, 4096u);
}

}  // namespace
