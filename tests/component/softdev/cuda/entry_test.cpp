// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: the function whose signature belongs to the requested version and default
// stream.
#include <cudaTypedefs.h>
#include <dlfcn.h>

#include <cstring>
#include <thread>

#include "tests/component/softdev/cuda/fixture.h"

namespace softdev::test {
namespace {

class Entry : public SoftCuda {
protected:
    void* get(const char* name, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
        void* function = this;
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        const CUresult result = cuGetProcAddress(name, &function, version, flags, &status);
        EXPECT_EQ(result,
                  status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
        EXPECT_EQ(function == nullptr, result != CUDA_SUCCESS);
        status_ = status;
        return function;
    }
    static void* exported(const char* name) { return dlsym(RTLD_DEFAULT, name); }

    CUdriverProcAddressQueryResult status_ = CU_GET_PROC_ADDRESS_SUCCESS;
};

TEST_F(Entry, UnknownNamesAreNotFound) {
    EXPECT_EQ(get("cuTotallyUnknown", 13000), nullptr);
    EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(get("cuMemAlloc_v2", 13000), nullptr) << "names come without a suffix";
    void* function = this;
    EXPECT_EQ(cuGetProcAddress(nullptr, &function, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGetProcAddress("cuInit", &function, 13000, 3, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGetProcAddress("cuInit", &function, 13000, 0, nullptr), CUDA_SUCCESS);
}

TEST_F(Entry, TooOldAVersionIsSaid) {
    EXPECT_EQ(get("cuMemAllocAsync", 11010), nullptr);
    EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    EXPECT_NE(get("cuMemAllocAsync", 11020), nullptr);
}

TEST_F(Entry, EachVersionHasItsSignature) {
    EXPECT_EQ(get("cuStreamGetCaptureInfo", 11000), exported("cuStreamGetCaptureInfo"));
    EXPECT_EQ(get("cuStreamGetCaptureInfo", 11030), exported("cuStreamGetCaptureInfo_v2"));
    EXPECT_EQ(get("cuStreamGetCaptureInfo", 12020), exported("cuStreamGetCaptureInfo_v2"));
    EXPECT_EQ(get("cuStreamGetCaptureInfo", 12030), exported("cuStreamGetCaptureInfo_v3"));
    EXPECT_EQ(get("cuStreamGetCaptureInfo", 13000), exported("cuStreamGetCaptureInfo_v3"));
    EXPECT_EQ(get("cuEventElapsedTime", 12000), exported("cuEventElapsedTime"));
    EXPECT_EQ(get("cuEventElapsedTime", 13000), exported("cuEventElapsedTime_v2"));
    EXPECT_EQ(get("cuDeviceGetUuid", 11000), exported("cuDeviceGetUuid"));
    EXPECT_EQ(get("cuDeviceGetUuid", 12000), exported("cuDeviceGetUuid_v2"));
    EXPECT_EQ(get("cuCtxGetDevice", 12080), exported("cuCtxGetDevice"));
    EXPECT_EQ(get("cuCtxGetDevice", 13000), exported("cuCtxGetDevice_v2"));
    EXPECT_EQ(get("cuGetProcAddress", 11030), exported("cuGetProcAddress"));
    EXPECT_EQ(get("cuGetProcAddress", 12000), exported("cuGetProcAddress_v2"));
    EXPECT_EQ(get("cuMemAlloc", 13000), exported("cuMemAlloc_v2"));
}

TEST_F(Entry, ThePointersWorkWithTheirSignatures) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cuuint64_t id = 0;
    const CUstream s = stream();
    auto* v10 =
        reinterpret_cast<PFN_cuStreamGetCaptureInfo_v10010>(get("cuStreamGetCaptureInfo", 11000));
    EXPECT_EQ(v10(s, &status, &id), CUDA_SUCCESS);
    auto* v11 =
        reinterpret_cast<PFN_cuStreamGetCaptureInfo_v11030>(get("cuStreamGetCaptureInfo", 11030));
    EXPECT_EQ(v11(s, &status, &id, nullptr, nullptr, nullptr), CUDA_SUCCESS);
    auto* v12 =
        reinterpret_cast<PFN_cuStreamGetCaptureInfo_v12030>(get("cuStreamGetCaptureInfo", 12030));
    EXPECT_EQ(v12(s, &status, &id, nullptr, nullptr, nullptr, nullptr), CUDA_SUCCESS);
    CUdevice ordinal = -1;
    auto* device = reinterpret_cast<PFN_cuCtxGetDevice_v13000>(get("cuCtxGetDevice", 13000));
    EXPECT_EQ(device(&ordinal, context_), CUDA_SUCCESS);
    EXPECT_EQ(ordinal, 0);
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(Entry, PerThreadFlagChangesTheMeaningOfNull) {
    const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    EXPECT_EQ(get("cuStreamQuery", 13000, per_thread), exported("cuStreamQuery_ptsz"));
    EXPECT_EQ(get("cuMemcpyHtoD", 13000, per_thread), exported("cuMemcpyHtoD_v2_ptds"));
    EXPECT_EQ(get("cuInit", 13000, per_thread), exported("cuInit")) << "no stream, no other form";
    EXPECT_EQ(get("cuStreamQuery", 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM),
              exported("cuStreamQuery"));
    Gate gate;
    const CUstream blocking = stream(CU_STREAM_DEFAULT);
    ASSERT_EQ(gate.hold(blocking), CUDA_SUCCESS);
    auto* legacy = reinterpret_cast<PFN_cuStreamQuery_v2000>(get("cuStreamQuery", 13000));
    auto* own =
        reinterpret_cast<PFN_cuStreamQuery_v7000_ptsz>(get("cuStreamQuery", 13000, per_thread));
    EXPECT_EQ(legacy(nullptr), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(own(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(own(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
    gate.open();
}

// facts: what a scheduler that is preloaded into a job asks the driver for.
TEST_F(Entry, AllThatASchedulerNeedsIsThere) {
    const char* names[] = {"cuGetProcAddress",
                           "cuInit",
                           "cuDriverGetVersion",
                           "cuGetErrorName",
                           "cuGetErrorString",
                           "cuDeviceGet",
                           "cuDeviceGetCount",
                           "cuDeviceGetAttribute",
                           "cuDeviceGetName",
                           "cuDeviceGetUuid",
                           "cuDeviceTotalMem",
                           "cuDevicePrimaryCtxRetain",
                           "cuDevicePrimaryCtxRelease",
                           "cuCtxGetCurrent",
                           "cuCtxSetCurrent",
                           "cuCtxPushCurrent",
                           "cuCtxPopCurrent",
                           "cuCtxGetDevice",
                           "cuStreamGetCtx",
                           "cuCtxGetStreamPriorityRange",
                           "cuStreamCreateWithPriority",
                           "cuStreamCreate",
                           "cuStreamDestroy",
                           "cuStreamWaitEvent",
                           "cuStreamQuery",
                           "cuStreamSynchronize",
                           "cuStreamGetPriority",
                           "cuStreamGetId",
                           "cuEventCreate",
                           "cuEventRecord",
                           "cuEventQuery",
                           "cuEventSynchronize",
                           "cuEventElapsedTime",
                           "cuEventDestroy",
                           "cuLaunchHostFunc",
                           "cuStreamIsCapturing",
                           "cuStreamGetCaptureInfo",
                           "cuThreadExchangeStreamCaptureMode",
                           "cuMemAlloc",
                           "cuMemFree",
                           "cuMemAllocAsync",
                           "cuMemFreeAsync",
                           "cuMemHostAlloc",
                           "cuMemFreeHost",
                           "cuMemGetInfo",
                           "cuMemcpyAsync",
                           "cuMemcpyDtoDAsync",
                           "cuMemcpyDtoHAsync",
                           "cuMemcpyHtoDAsync",
                           "cuMemsetD8Async",
                           "cuMemsetD32Async",
                           "cuPointerGetAttribute",
                           "cuPointerGetAttributes",
                           "cuMemGetAddressRange",
                           "cuModuleLoadData",
                           "cuLibraryLoadData",
                           "cuLibraryGetKernel",
                           "cuModuleGetFunction",
                           "cuModuleUnload",
                           "cuLaunchKernel",
                           "cuStreamWriteValue32",
                           "cuStreamWaitValue32",
                           "cuMemGetHandleForAddressRange"};
    for (const char* name : names) {
        EXPECT_NE(get(name, 13000), nullptr) << name;
        EXPECT_NE(exported(name), nullptr) << name << " by its plain name";
    }
}

}  // namespace
}  // namespace softdev::test
