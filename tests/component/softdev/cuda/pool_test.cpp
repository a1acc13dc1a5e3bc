// SPDX-License-Identifier: Apache-2.0
// Memory pools, and what is shared between processes: nothing.
#include <dlfcn.h>

#include "tests/component/softdev/cuda/fixture.h"

namespace softdev::test {
namespace {

class Pools : public SoftCuda {
protected:
    static CUmemoryPool pool(int device = 0) {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
        CUmemoryPool made = nullptr;
        EXPECT_EQ(cuMemPoolCreate(&made, &properties), CUDA_SUCCESS);
        return made;
    }
    static cuuint64_t ask(CUmemoryPool pool, CUmemPool_attribute attribute) {
        cuuint64_t value = 0;
        EXPECT_EQ(cuMemPoolGetAttribute(pool, attribute, &value), CUDA_SUCCESS);
        return value;
    }
};

TEST_F(Pools, CountWhatWasAllocatedFromThem) {
    const CUmemoryPool own = pool();
    const CUstream s = stream();
    CUdeviceptr a = 0, b = 0, elsewhere = 0;
    ASSERT_EQ(cuMemAllocFromPoolAsync(&a, 1000, own, s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAllocFromPoolAsync(&b, 3000, own, s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAllocAsync(&elsewhere, 500, s), CUDA_SUCCESS);
    EXPECT_EQ(ask(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4000u);
    EXPECT_EQ(cuMemsetD8Async(a, 1, 1000, s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeAsync(b, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(ask(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1000u);
    EXPECT_EQ(ask(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 4000u);
    cuuint64_t zero = 0;
    EXPECT_EQ(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero), CUDA_SUCCESS);
    EXPECT_EQ(ask(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1000u);
    EXPECT_EQ(cuMemPoolTrimTo(own, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemPoolDestroy(own), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(a, 1, 1000, s), CUDA_SUCCESS) << "its memory lives on";
    EXPECT_EQ(cuMemFreeAsync(a, s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeAsync(elsewhere, s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&a, 1000, own, s), CUDA_ERROR_INVALID_VALUE);
    expect_reports(1);  // the destroyed pool
}

TEST_F(Pools, OfADeviceCanBeExchanged) {
    CUmemoryPool first = nullptr, now = nullptr;
    ASSERT_EQ(cuDeviceGetDefaultMemPool(&first, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuDeviceGetMemPool(&now, 0), CUDA_SUCCESS);
    EXPECT_EQ(first, now);
    const CUmemoryPool own = pool();
    EXPECT_EQ(cuDeviceSetMemPool(1, own), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_EQ(cuDeviceSetMemPool(0, own), CUDA_SUCCESS);
    const CUstream s = stream();
    CUdeviceptr memory = 0;
    ASSERT_EQ(cuMemAllocAsync(&memory, 64, s), CUDA_SUCCESS);
    EXPECT_EQ(ask(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 64u);
    EXPECT_EQ(cuMemFreeAsync(memory, s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemPoolDestroy(own), CUDA_SUCCESS);
    ASSERT_EQ(cuDeviceGetMemPool(&now, 0), CUDA_SUCCESS);
    EXPECT_EQ(first, now);
    EXPECT_EQ(cuMemPoolDestroy(first), CUDA_ERROR_INVALID_VALUE) << "a default pool stays";
}

TEST_F(Pools, AndMemoryAreNotShared) {
    CUmemPoolProps shared{};
    shared.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    shared.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    shared.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemoryPool made = nullptr;
    EXPECT_EQ(cuMemPoolCreate(&made, &shared), CUDA_ERROR_NOT_SUPPORTED);
    const CUdeviceptr p = memory(64);
    CUipcMemHandle handle{};
    CUdeviceptr opened = 0;
    EXPECT_EQ(cuIpcGetMemHandle(&handle, p), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuIpcOpenMemHandle(&opened, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    CUipcEventHandle event_handle{};
    EXPECT_EQ(cuIpcGetEventHandle(&event_handle, event()), CUDA_ERROR_NOT_SUPPORTED);
    void* function = nullptr;
    EXPECT_EQ(cuGetProcAddress("cuIpcGetMemHandle", &function, 13000, 0, nullptr), CUDA_SUCCESS);
    EXPECT_NE(function, nullptr);
    EXPECT_EQ(cuMemFree(p), CUDA_SUCCESS);
}

// ---- copies of rows
// ------------------------------------------------------------------------------

TEST_F(SoftCuda, CopiesRowsWithAPitch) {
    const CUstream s = stream();
    std::vector<unsigned char> in(8 * 10), out(5 * 20, 0xee);
    for (std::size_t i = 0; i < in.size(); ++i) {
        in[i] = static_cast<unsigned char>(i);
    }
    const CUdeviceptr middle = memory(32 * 8);
    CUDA_MEMCPY2D c{};
    c.srcMemoryType = CU_MEMORYTYPE_HOST;
    c.srcHost = in.data();
    c.srcPitch = 10;
    c.srcXInBytes = 2;
    c.srcY = 1;
    c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    c.dstDevice = middle;
    c.dstPitch = 32;
    c.WidthInBytes = 7;
    c.Height = 5;
    ASSERT_EQ(cuMemcpy2DAsync(&c, s), CUDA_SUCCESS);
    CUDA_MEMCPY2D back{};
    back.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    back.srcDevice = middle;
    back.srcPitch = 32;
    back.dstMemoryType = CU_MEMORYTYPE_HOST;
    back.dstHost = out.data();
    back.dstPitch = 20;
    back.WidthInBytes = 7;
    back.Height = 5;
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpy2D(&back), CUDA_SUCCESS);
    for (std::size_t row = 0; row < 5; ++row) {
        for (std::size_t i = 0; i < 20; ++i) {
            EXPECT_EQ(out[row * 20 + i], i < 7 ? in[(row + 1) * 10 + 2 + i] : 0xee);
        }
    }
    back.Height = 9;  // runs past the 8 rows of 32 bytes
    EXPECT_EQ(cuMemcpy2D(&back), CUDA_ERROR_INVALID_VALUE);
    back.Height = 5;
    back.srcPitch = 6;  // narrower than a row
    EXPECT_EQ(cuMemcpy2D(&back), CUDA_ERROR_INVALID_VALUE);
    back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    EXPECT_EQ(cuMemcpy2D(&back), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuMemFree(middle), CUDA_SUCCESS);
    expect_reports(1);
}

// Interleaved rows of two streams do not touch the same bytes; the same rows do.
TEST_F(SoftCuda, CopiesOfRowsDeclareTheRowsOnly) {
    const CUstream s = stream(), t = stream();
    const CUdeviceptr from = memory(64 * 8), to = memory(64 * 8);
    CUDA_MEMCPY2D c{};
    c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    c.srcDevice = from;
    c.dstDevice = to;
    c.srcPitch = c.dstPitch = 64;
    c.WidthInBytes = 32;
    c.Height = 8;
    EXPECT_EQ(cuMemcpy2DAsync(&c, s), CUDA_SUCCESS);
    c.dstXInBytes = 32;
    EXPECT_EQ(cuMemcpy2DAsync(&c, t), CUDA_SUCCESS);
    c.dstXInBytes = 31;
    EXPECT_EQ(cuMemcpy2DAsync(&c, t), CUDA_ERROR_ILLEGAL_STATE);
    expect_reports(1);
}

TEST_F(SoftCuda, StreamCallbacksRunInOrder) {
    struct Seen {
        CUstream stream = nullptr;
        CUresult status = CUDA_ERROR_UNKNOWN;
        CUresult inside = CUDA_SUCCESS;
    } seen;
    const CUstream s = stream();
    Gate gate;
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamAddCallback(
                  s,
                  [](CUstream stream, CUresult status, void* data) {
                      auto* out = static_cast<Seen*>(data);
                      out->stream = stream;
                      out->status = status;
                      out->inside = cuCtxSynchronize();
                  },
                  &seen, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(seen.stream, nullptr);
    gate.open();
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(seen.stream, s);
    EXPECT_EQ(seen.status, CUDA_SUCCESS);
    EXPECT_EQ(seen.inside, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(cuStreamAddCallback(s, nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    expect_reports(1);  // the call from within
}

// ---- ranks in reports
// ----------------------------------------------------------------------------

TEST_F(SoftCuda, ReportsNameTheRankOfTheDevice) {
    softdevSetDeviceRank(0, 6);
    softdevSetDeviceRank(1, 2);
    ::testing::internal::CaptureStderr();
    softdevReport("of the current device");
    softdevReportOn(1, "of another device");
    softdevReportOn(2, "of none");
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(said,
              "softdev: error: [rank 6] of the current device\n"
              "softdev: error: [rank 2] of another device\n"
              "softdev: error: of none\n");
    softdevSetDeviceRank(0, -1);
    softdevSetDeviceRank(1, -1);
    expect_reports(3);
}

}  // namespace
}  // namespace softdev::test
