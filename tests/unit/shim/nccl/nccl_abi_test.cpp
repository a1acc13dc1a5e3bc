// SPDX-License-Identifier: Apache-2.0
// Our own declarations of NCCL against the vendor's header: if this compiles, they agree.
#include <nccl.h>

#include <gtest/gtest.h>
#include <type_traits>

#include "shim/nccl/nccl_table.h"
#include "tests/system/shim/newer_nccl.h"

namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(deft_nccl_unique_id_t));
static_assert(alignof(ncclUniqueId) == alignof(deft_nccl_unique_id_t));
static_assert(std::is_trivially_copyable_v<deft_nccl_unique_id_t>);
static_assert(sizeof(ncclComm_t) == sizeof(deft_nccl_comm_t));
static_assert(sizeof(cudaStream_t) == sizeof(deft_cuda_stream_t));
static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int) &&
              sizeof(ncclRedOp_t) == sizeof(int));
static_assert(ncclSuccess == 0 + DEFT_NCCL_SUCCESS);
static_assert(ncclUnhandledCudaError == 0 + DEFT_NCCL_UNHANDLED_CUDA_ERROR);
static_assert(ncclSystemError == 0 + DEFT_NCCL_SYSTEM_ERROR);
static_assert(ncclInternalError == 0 + DEFT_NCCL_INTERNAL_ERROR);
static_assert(ncclInvalidArgument == 0 + DEFT_NCCL_INVALID_ARGUMENT);
static_assert(ncclInvalidUsage == 0 + DEFT_NCCL_INVALID_USAGE);
static_assert(ncclRemoteError == 0 + DEFT_NCCL_REMOTE_ERROR);
static_assert(ncclInProgress == 0 + DEFT_NCCL_IN_PROGRESS);
static_assert(ncclSum == 0 + DEFT_NCCL_SUM && ncclProd == 0 + DEFT_NCCL_PROD &&
              ncclMax == 0 + DEFT_NCCL_MAX && ncclMin == 0 + DEFT_NCCL_MIN &&
              ncclAvg == 0 + DEFT_NCCL_AVG && ncclNumOps == 0 + DEFT_NCCL_NUM_OPS);
static_assert(ncclInt8 == 0 + DEFT_NCCL_INT8 && ncclUint8 == 0 + DEFT_NCCL_UINT8 &&
              ncclInt32 == 0 + DEFT_NCCL_INT32 && ncclUint32 == 0 + DEFT_NCCL_UINT32 &&
              ncclInt64 == 0 + DEFT_NCCL_INT64 && ncclUint64 == 0 + DEFT_NCCL_UINT64);
static_assert(ncclFloat16 == 0 + DEFT_NCCL_FLOAT16 && ncclFloat32 == 0 + DEFT_NCCL_FLOAT32 &&
              ncclFloat64 == 0 + DEFT_NCCL_FLOAT64 && ncclBfloat16 == 0 + DEFT_NCCL_BFLOAT16);
#if NCCL_VERSION_CODE >= 22400
static_assert(ncclFloat8e4m3 == 0 + DEFT_NCCL_FLOAT8_E4M3 &&
              ncclFloat8e5m2 == 0 + DEFT_NCCL_FLOAT8_E5M2);
#endif
static_assert(NCCL_SPLIT_NOCOLOR == 0 + DEFT_NCCL_SPLIT_NOCOLOR);

// A type as it is passed: pointers and handles are one word, enums an int, the id 128 bytes.
template <typename T>
struct Passed {
    using type = std::conditional_t<std::is_pointer_v<T>, void*, T>;
};
template <typename T>
requires std::is_enum_v<T>
struct Passed<T> {
    using type = int;
};
template <>
struct Passed<ncclUniqueId> {
    using type = deft_nccl_unique_id_t;
};
template <typename F>
struct Shape;
template <typename Result, typename... Parameters>
struct Shape<Result (*)(Parameters...)> {
    using type = typename Passed<Result>::type (*)(typename Passed<Parameters>::type...);
};
template <typename Result, typename... Parameters>
struct Shape<Result (*)(Parameters...) noexcept> : Shape<Result (*)(Parameters...)> {};

template <typename Ours, typename Theirs>
constexpr bool same_shape =
    std::is_same_v<typename Shape<Ours>::type, typename Shape<Theirs>::type>;

#define DEFT_NCCL_FUNCTION(name, result, parameters, since) \
    static_assert(same_shape<decltype(deft::NcclTable::name), decltype(&::nccl##name)>, #name);
extern "C" {
#if NCCL_VERSION_CODE < 22900
// As nccl.h 2.29 has them.
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** pointer);
ncclResult_t ncclPutSignal(const void* send, size_t count, ncclDataType_t type, int peer,
                           ncclWindow_t window, size_t offset, int signal, int context,
                           unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSignal(int peer, int signal, int context, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream);
ncclResult_t ncclWaitSignal(int count, void* awaited, ncclComm_t comm, cudaStream_t stream);
#endif
#if NCCL_VERSION_CODE < 22907
// As nccl.h 2.29.7 has them.
enum MemoryStatistic : unsigned {};
ncclResult_t ncclCommMemStats(ncclComm_t comm, MemoryStatistic which, uint64_t* value);
#endif
// As nccl_device.h has them, which needs a compiler for CUDA: these four are compared with what is
// written here, and with nothing of the vendor's.
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void* wanted, void* made);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void* made);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** pointer);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** pointer);
}
#if NCCL_VERSION_CODE >= 22809
#include "shim/nccl/nccl_functions.def"
#endif
#undef DEFT_NCCL_FUNCTION

TEST(NcclAbi, AgreesWithTheVendorsHeader) {
#if NCCL_VERSION_CODE < 22809
    GTEST_SKIP() << "nccl.h here is " << NCCL_VERSION_CODE
                 << "; signatures are checked from 2.28.9";
#endif
}

}  // namespace
