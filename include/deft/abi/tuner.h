/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL tuner plugin ABI, versions 2 to 6, written from its documented layout.
 *
 * NCCL 2.21 looks for v2; 2.22 and 2.23 for v3 and v2; 2.24 to 2.27 for v4 to v2; 2.28 and 2.29 for
 * v5 to v2; 2.30 for v6 to v2. Newest first, in the library that NCCL_TUNER_PLUGIN names, else in
 * libnccl-tuner.so, else in the network plugin's library. The symbols are ncclTunerPlugin_vN.
 *
 * Results are plain ints with the values of ncclResult_t. An error of getCollInfo fails the job's
 * call, so a table of ours never returns one.
 *
 * Plain C11 and C++.
 */
#ifndef DEFT_ABI_TUNER_H
#define DEFT_ABI_TUNER_H

#include "deft/abi/net.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values of ncclFunc_t that all of these versions share. */
enum {
    DEFT_TUNER_BROADCAST = 0,
    DEFT_TUNER_REDUCE = 1,
    DEFT_TUNER_ALL_GATHER = 2,
    DEFT_TUNER_REDUCE_SCATTER = 3,
    DEFT_TUNER_ALL_REDUCE = 4
};

/* Rows of the cost table: algorithms. PAT is there from NCCL 2.23 on. */
enum {
    DEFT_TUNER_UNDEF = -1, /* neither an algorithm nor a protocol: NCCL chooses */
    DEFT_TUNER_TREE = 0,
    DEFT_TUNER_RING = 1,
    DEFT_TUNER_COLLNET_DIRECT = 2,
    DEFT_TUNER_COLLNET_CHAIN = 3,
    DEFT_TUNER_NVLS = 4,
    DEFT_TUNER_NVLS_TREE = 5,
    DEFT_TUNER_PAT = 6,
    DEFT_TUNER_ALGORITHMS = 7
};

/* Columns of the cost table: protocols. */
enum { DEFT_TUNER_LL = 0, DEFT_TUNER_LL128 = 1, DEFT_TUNER_SIMPLE = 2, DEFT_TUNER_PROTOCOLS = 3 };

/* An entry below 0 (NCCL writes -1) cannot be had and must stay as it is. Others are predicted
 * microseconds, of which NCCL takes the least. */
#define DEFT_TUNER_IGNORE (-1.0f)

/* v5 and later: how the ranks lie in NVLink domains. */
typedef struct {
    int nNvlDomains;
    int minRanksPerNvlDomain;
    int maxRanksPerNvlDomain;
} deft_tuner_nvl_domains_t;

/* v2. The context is the communicator's, as init made it. getCollInfo may leave algorithm and
 * protocol as they are (both -1) and *channels 0: NCCL chooses what is not set. */
typedef struct {
    const char* name;
    int (*init)(size_t ranks, size_t nodes, deft_net_logger_t logger, void** context);
    int (*getCollInfo)(void* context, int function, size_t bytes, int collnet, int nvls,
                       int pipelined, int* algorithm, int* protocol, int* channels);
    int (*destroy)(void* context);
} deft_tuner_v2_t;

/* v3. `costs` is the first element of float[algorithms][protocols], whatever its type says. */
typedef struct {
    const char* name;
    int (*init)(size_t ranks, size_t nodes, deft_net_logger_t logger, void** context);
    int (*getCollInfo)(void* context, int function, size_t bytes, int pipelined, float** costs,
                       int algorithms, int protocols, int* channels);
    int (*destroy)(void* context);
} deft_tuner_v3_t;

/* v4: whether the call's buffers are registered. */
typedef struct {
    const char* name;
    int (*init)(size_t ranks, size_t nodes, deft_net_logger_t logger, void** context);
    int (*getCollInfo)(void* context, int function, size_t bytes, int pipelined, float** costs,
                       int algorithms, int protocols, int registered, int* channels);
    int (*destroy)(void* context);
} deft_tuner_v4_t;

/* v5: the communicator's number, which network plugins get too; NCCL's constants, which a tuner may
 * change and we do not look at. */
typedef struct {
    const char* name;
    int (*init)(void** context, uint64_t communicator, size_t ranks, size_t nodes,
                deft_net_logger_t logger, deft_tuner_nvl_domains_t* domains, void* constants);
    int (*getCollInfo)(void* context, int function, size_t bytes, int pipelined, float** costs,
                       int algorithms, int protocols, int registered, int* channels);
    int (*finalize)(void* context);
} deft_tuner_v5_t;

/* v6: the size of a chunk may be changed. NULL: NCCL's stays. */
typedef struct {
    const char* name;
    int (*init)(void** context, uint64_t communicator, size_t ranks, size_t nodes,
                deft_net_logger_t logger, deft_tuner_nvl_domains_t* domains, void* constants);
    int (*getCollInfo)(void* context, int function, size_t bytes, int pipelined, float** costs,
                       int algorithms, int protocols, int registered, int* channels);
    int (*finalize)(void* context);
    int (*getChunkSize)(void* context, int function, size_t bytes, int algorithm, int protocol,
                        int channels, size_t* chunk_bytes);
} deft_tuner_v6_t;

#ifdef __cplusplus
}
#define DEFT_TUNER_ASSERT(condition) static_assert(condition, #condition)
#else
#define DEFT_TUNER_ASSERT(condition) _Static_assert(condition, #condition)
#endif

DEFT_TUNER_ASSERT(sizeof(deft_tuner_nvl_domains_t) == 12);
DEFT_TUNER_ASSERT(sizeof(deft_tuner_v2_t) == 32);
DEFT_TUNER_ASSERT(sizeof(deft_tuner_v3_t) == 32);
DEFT_TUNER_ASSERT(sizeof(deft_tuner_v4_t) == 32);
DEFT_TUNER_ASSERT(sizeof(deft_tuner_v5_t) == 32);
DEFT_TUNER_ASSERT(sizeof(deft_tuner_v6_t) == 40);

#undef DEFT_TUNER_ASSERT

#endif
