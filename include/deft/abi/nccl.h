/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of NCCL's host API as the preloaded hooks need, in our own words: opaque handles, plain
 * ints with the values of NCCL's enums, a unique id passed by value. Binary-compatible with nccl.h
 * of NCCL 2.13 to 2.30 on 64-bit Linux; tests/unit/shim asserts it against the vendor's header.
 *
 * Why our own: the library must build without the vendor's headers and serve any NCCL it meets.
 *
 * Plain C11 and C++; no includes beyond <stddef.h> and <stdint.h>.
 */
#ifndef DEFT_ABI_NCCL_H
#define DEFT_ABI_NCCL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct deft_nccl_comm* deft_nccl_comm_t; /* ncclComm_t: never wrapped, never looked into */
typedef struct deft_nccl_config deft_nccl_config_t;     /* ncclConfig_t: passed on as it is */
typedef struct deft_nccl_sim_info deft_nccl_sim_info_t; /* ncclSimInfo_t: passed on as it is */
typedef struct deft_cuda_stream* deft_cuda_stream_t;    /* cudaStream_t, CUstream */
typedef struct deft_nccl_window* deft_nccl_window_t;    /* ncclWindow_t, of registered memory */
/* ncclWaitSignalDesc_t, ncclDevCommRequirements_t, ncclDevComm_t: passed on as they are */
typedef struct deft_nccl_wait_signal deft_nccl_wait_signal_t;
typedef struct deft_nccl_dev_requirements deft_nccl_dev_requirements_t;
typedef struct deft_nccl_dev_comm deft_nccl_dev_comm_t;

enum { DEFT_NCCL_UNIQUE_ID_BYTES = 128 };
typedef struct {
    char internal[DEFT_NCCL_UNIQUE_ID_BYTES];
} deft_nccl_unique_id_t;

/* ncclResult_t */
enum {
    DEFT_NCCL_SUCCESS = 0,
    DEFT_NCCL_UNHANDLED_CUDA_ERROR = 1,
    DEFT_NCCL_SYSTEM_ERROR = 2,
    DEFT_NCCL_INTERNAL_ERROR = 3,
    DEFT_NCCL_INVALID_ARGUMENT = 4,
    DEFT_NCCL_INVALID_USAGE = 5,
    DEFT_NCCL_REMOTE_ERROR = 6,
    DEFT_NCCL_IN_PROGRESS = 7
};

/* ncclRedOp_t; values from DEFT_NCCL_NUM_OPS on are user reductions of one communicator. */
enum {
    DEFT_NCCL_SUM = 0,
    DEFT_NCCL_PROD = 1,
    DEFT_NCCL_MAX = 2,
    DEFT_NCCL_MIN = 3,
    DEFT_NCCL_AVG = 4,
    DEFT_NCCL_NUM_OPS = 5
};

/* ncclDataType_t */
enum {
    DEFT_NCCL_INT8 = 0,
    DEFT_NCCL_UINT8 = 1,
    DEFT_NCCL_INT32 = 2,
    DEFT_NCCL_UINT32 = 3,
    DEFT_NCCL_INT64 = 4,
    DEFT_NCCL_UINT64 = 5,
    DEFT_NCCL_FLOAT16 = 6,
    DEFT_NCCL_FLOAT32 = 7,
    DEFT_NCCL_FLOAT64 = 8,
    DEFT_NCCL_BFLOAT16 = 9,
    DEFT_NCCL_FLOAT8_E4M3 = 10,
    DEFT_NCCL_FLOAT8_E5M2 = 11,
    DEFT_NCCL_NUM_TYPES = 12
};

/* color of a rank that leaves in ncclCommSplit; flag of ncclCommShrink that aborts the parent */
enum { DEFT_NCCL_SPLIT_NOCOLOR = -1, DEFT_NCCL_SHRINK_ABORT = 1 };

#ifdef __cplusplus
}
#endif

#endif /* DEFT_ABI_NCCL_H */
