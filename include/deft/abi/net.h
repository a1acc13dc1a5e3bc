/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL network plugin ABI, versions 6 to 12, written from its documented layout.
 *
 * Why our own header: one build must serve NCCL 2.13 to 2.30 and no NCCL release ships all of these
 * versions. Results are plain ints with the values of ncclResult_t. Sizes and offsets are asserted
 * at the end of this file for the 64-bit Linux data model, the only one NCCL supports.
 *
 * Plain C11 and C++; no includes beyond <stddef.h>, <stdint.h>.
 */
#ifndef DEFT_ABI_NET_H
#define DEFT_ABI_NET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values of ncclResult_t. */
enum {
    DEFT_NET_SUCCESS = 0,
    DEFT_NET_UNHANDLED_CUDA_ERROR = 1,
    DEFT_NET_SYSTEM_ERROR = 2,
    DEFT_NET_INTERNAL_ERROR = 3,
    DEFT_NET_INVALID_ARGUMENT = 4,
    DEFT_NET_INVALID_USAGE = 5,
    DEFT_NET_REMOTE_ERROR = 6,
    DEFT_NET_IN_PROGRESS = 7
};

enum {
    DEFT_NET_HANDLE_MAXSIZE = 128, /* bytes a listen handle may use */
    DEFT_NET_MAX_REQUESTS = 32,    /* requests outstanding per communicator (8 up to NCCL 2.18) */
    DEFT_NET_MAX_DEVS_V11 = 4,     /* children of a virtual device, v9..v11 */
    DEFT_NET_MAX_DEVS_V12 = 8,     /* the same in v12 */
    DEFT_NET_DEVICE_HOST = 0,      /* netDeviceType of an ordinary device */
    DEFT_NET_DEVICE_HOST_VERSION = 0, /* netDeviceVersion of an ordinary device */
    DEFT_NET_TRAFFIC_CLASS_UNDEF = -1
};

/* ptrSupport bits and regMr's type argument. */
enum { DEFT_NET_PTR_HOST = 1, DEFT_NET_PTR_CUDA = 2, DEFT_NET_PTR_DMABUF = 4 };

/* irecv's incoming *request when the receiver may report completion early (LL and LL128 only). */
#define DEFT_NET_OPTIONAL_RECV_COMPLETION ((void*)(uintptr_t)1)

/* Largest size NCCL sends through v6..v8 (int sizes), and the upper limit of
 * maxP2pBytes/maxCollBytes. */
#define DEFT_NET_MAX_SIZE_INT32 ((size_t)1 << 30)
#define DEFT_NET_MAX_BYTES ((size_t)1 << 40)

/* Logger levels and subsystem bits. */
enum {
    DEFT_NET_LOG_NONE = 0,
    DEFT_NET_LOG_VERSION = 1,
    DEFT_NET_LOG_WARN = 2,
    DEFT_NET_LOG_INFO = 3,
    DEFT_NET_LOG_ABORT = 4,
    DEFT_NET_LOG_TRACE = 5
};
enum { DEFT_NET_SUBSYS_INIT = 0x1, DEFT_NET_SUBSYS_NET = 0x10, DEFT_NET_SUBSYS_ENV = 0x80 };

typedef void (*deft_net_logger_t)(int level, unsigned long subsystems, const char* file, int line,
                                  const char* format, ...);

/* Profiler callback (v10+): type 0 start, 1 stop, 2 update, 3 update and stop. Safe with no
 * profiler. */
typedef int (*deft_net_profiler_t)(void** event, int type, void* parent, int64_t plugin_id,
                                   void* extra);

/* Device-side networking hand-over; NCCL passes a pointer to NULL for ordinary devices. */
typedef struct {
    int netDeviceType;
    int netDeviceVersion;
    void* handle;
    size_t size;
    int needsProxyProgress;
} deft_net_device_handle_t;

/* Per-communicator settings (v10: to connect; v11+: to init). May live on the caller's stack. */
typedef struct {
    int trafficClass; /* DEFT_NET_TRAFFIC_CLASS_UNDEF when the user set none */
} deft_net_comm_config_t;

typedef struct {
    int ndevs;
    int devs[DEFT_NET_MAX_DEVS_V11];
} deft_net_vprops_v9_t; /* v9, v10, v11 */

typedef struct {
    int ndevs;
    int devs[DEFT_NET_MAX_DEVS_V12];
} deft_net_vprops_v12_t;

typedef struct {
    int32_t maxConcurrentPeers;
    int32_t minConcurrentPeers;
    int32_t maxFlowsPerPeer;
    int32_t minFlowsPerPeer;
} deft_net_comm_attr_t;

/* Hints on how connections will be used (v11+); -1 or all ones means undefined. */
typedef struct {
    deft_net_comm_attr_t sendCommAttr;
    deft_net_comm_attr_t recvCommAttr;
    uint32_t op;
    uint32_t algo;
    uint32_t proto;
} deft_net_attr_t;

/* ---- properties ------------------------------------------------------------------------------ */

typedef struct {
    char* name;
    char* pciPath; /* sysfs directory of the PCI device, or NULL */
    uint64_t guid;
    int ptrSupport;
    int speed; /* Mbit/s */
    int port;
    float latency; /* microseconds */
    int maxComms;
    int maxRecvs;
} deft_net_props_v6_t;

typedef struct {
    char* name;
    char* pciPath;
    uint64_t guid;
    int ptrSupport;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
} deft_net_props_v7_t;

typedef struct {
    char* name;
    char* pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
} deft_net_props_v8_t;

typedef struct {
    char* name;
    char* pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    deft_net_vprops_v9_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
} deft_net_props_v9_t; /* v9 and v10 */

typedef struct {
    char* name;
    char* pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    deft_net_vprops_v9_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize; /* 1 */
} deft_net_props_v11_t;

typedef struct {
    char* name;
    char* pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    deft_net_vprops_v12_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
    int16_t railId;  /* -1 undefined */
    int16_t planeId; /* -1 undefined */
} deft_net_props_v12_t;

/* ---- plugin tables: symbols ncclNetPlugin_v6 .. ncclNetPlugin_v12 -----------------------------
 */

typedef struct {
    const char* name;
    int (*init)(deft_net_logger_t logger);
    int (*devices)(int* ndev);
    int (*getProperties)(int dev, deft_net_props_v6_t* props);
    int (*listen)(int dev, void* handle, void** listenComm);
    int (*connect)(int dev, void* handle, void** sendComm);
    int (*accept)(void* listenComm, void** recvComm);
    int (*regMr)(void* comm, void* data, int size, int type, void** mhandle);
    int (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                       void** mhandle);
    int (*deregMr)(void* comm, void* mhandle);
    int (*isend)(void* sendComm, void* data, int size, int tag, void* mhandle, void** request);
    int (*irecv)(void* recvComm, int n, void** data, int* sizes, int* tags, void** mhandles,
                 void** request);
    int (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
    int (*test)(void* request, int* done, int* sizes);
    int (*closeSend)(void* sendComm);
    int (*closeRecv)(void* recvComm);
    int (*closeListen)(void* listenComm);
} deft_net_v6_t;

typedef struct {
    const char* name;
    int (*init)(deft_net_logger_t logger);
    int (*devices)(int* ndev);
    int (*getProperties)(int dev, deft_net_props_v7_t* props);
    int (*listen)(int dev, void* handle, void** listenComm);
    int (*connect)(int dev, void* handle, void** sendComm, deft_net_device_handle_t** sendDevComm);
    int (*accept)(void* listenComm, void** recvComm, deft_net_device_handle_t** recvDevComm);
    int (*regMr)(void* comm, void* data, int size, int type, void** mhandle);
    int (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                       void** mhandle);
    int (*deregMr)(void* comm, void* mhandle);
    int (*isend)(void* sendComm, void* data, int size, int tag, void* mhandle, void** request);
    int (*irecv)(void* recvComm, int n, void** data, int* sizes, int* tags, void** mhandles,
                 void** request);
    int (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
    int (*test)(void* request, int* done, int* sizes);
    int (*closeSend)(void* sendComm);
    int (*closeRecv)(void* recvComm);
    int (*closeListen)(void* listenComm);
    int (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
    int (*irecvConsumed)(void* recvComm, int n, void* request);
} deft_net_v7_t;

typedef struct {
    const char* name;
    int (*init)(deft_net_logger_t logger);
    int (*devices)(int* ndev);
    int (*getProperties)(int dev, deft_net_props_v8_t* props);
    int (*listen)(int dev, void* handle, void** listenComm);
    int (*connect)(int dev, void* handle, void** sendComm, deft_net_device_handle_t** sendDevComm);
    int (*accept)(void* listenComm, void** recvComm, deft_net_device_handle_t** recvDevComm);
    int (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
    int (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                       void** mhandle);
    int (*deregMr)(void* comm, void* mhandle);
    int (*isend)(void* sendComm, void* data, int size, int tag, void* mhandle, void** request);
    int (*irecv)(void* recvComm, int n, void** data, int* sizes, int* tags, void** mhandles,
                 void** request);
    int (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
    int (*test)(void* request, int* done, int* sizes);
    int (*closeSend)(void* sendComm);
    int (*closeRecv)(void* recvComm);
    int (*closeListen)(void* listenComm);
    int (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
    int (*irecvConsumed)(void* recvComm, int n, void* request);
} deft_net_v8_t;

typedef struct {
    const char* name;
    int (*init)(deft_net_logger_t logger);
    int (*devices)(int* ndev);
    int (*getProperties)(int dev, deft_net_props_v9_t* props);
    int (*listen)(int dev, void* handle, void** listenComm);
    int (*connect)(int dev, void* handle, void** sendComm, deft_net_device_handle_t** sendDevComm);
    int (*accept)(void* listenComm, void** recvComm, deft_net_device_handle_t** recvDevComm);
    int (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
    int (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                       void** mhandle);
    int (*deregMr)(void* comm, void* mhandle);
    int (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void** request);
    int (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                 void** request);
    int (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
    int (*test)(void* request, int* done, int* sizes);
    int (*closeSend)(void* sendComm);
    int (*closeRecv)(void* recvComm);
    int (*closeListen)(void* listenComm);
    int (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
    int (*irecvConsumed)(void* recvComm, int n, void* request);
    int (*makeVDevice)(int* d, deft_net_vprops_v9_t* props);
} deft_net_v9_t;

typedef struct {
    const char* name;
    int (*init)(deft_net_logger_t logger, deft_net_profiler_t profiler);
    int (*devices)(int* ndev);
    int (*getProperties)(int dev, deft_net_props_v9_t* props);
    int (*listen)(int dev, void* handle, void** listenComm);
    int (*connect)(int dev, deft_net_comm_config_t* config, void* handle, void** sendComm,
                   deft_net_device_handle_t** sendDevComm);
    int (*accept)(void* listenComm, void** recvComm, deft_net_device_handle_t** recvDevComm);
    int (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
    int (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                       void** mhandle);
    int (*deregMr)(void* comm, void* mhandle);
    int (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                 void** request);
    int (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                 void** phandles, void** request);
    int (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
    int (*test)(void* request, int* done, int* sizes);
    int (*closeSend)(void* sendComm);
    int (*closeRecv)(void* recvComm);
    int (*closeListen)(void* listenComm);
    int (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
    int (*irecvConsumed)(void* recvComm, int n, void* request);
    int (*makeVDevice)(int* d, deft_net_vprops_v9_t* props);
} deft_net_v10_t;

typedef struct {
    const char* name;
    int (*init)(void** ctx, uint64_t commId, deft_net_comm_config_t* config,
                deft_net_logger_t logger, deft_net_profiler_t profiler);
    int (*devices)(int* ndev);
    int (*getProperties)(int dev, deft_net_props_v11_t* props);
    int (*listen)(void* ctx, int dev, void* handle, void** listenComm);
    int (*connect)(void* ctx, int dev, void* handle, void** sendComm,
                   deft_net_device_handle_t** sendDevComm);
    int (*accept)(void* listenComm, void** recvComm, deft_net_device_handle_t** recvDevComm);
    int (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
    int (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                       void** mhandle);
    int (*deregMr)(void* comm, void* mhandle);
    int (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                 void** request);
    int (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                 void** phandles, void** request);
    int (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
    int (*test)(void* request, int* done, int* sizes);
    int (*closeSend)(void* sendComm);
    int (*closeRecv)(void* recvComm);
    int (*closeListen)(void* listenComm);
    int (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
    int (*irecvConsumed)(void* recvComm, int n, void* request);
    int (*makeVDevice)(int* d, deft_net_vprops_v9_t* props);
    int (*finalize)(void* ctx); /* must be set: NCCL calls it unconditionally */
    int (*setNetAttr)(void* ctx, deft_net_attr_t* attr);
} deft_net_v11_t;

typedef struct {
    const char* name;
    int (*init)(void** ctx, uint64_t commId, deft_net_comm_config_t* config,
                deft_net_logger_t logger, deft_net_profiler_t profiler);
    int (*devices)(int* ndev);
    int (*getProperties)(int dev, deft_net_props_v12_t* props);
    int (*listen)(void* ctx, int dev, void* handle, void** listenComm);
    int (*connect)(void* ctx, int dev, void* handle, void** sendComm,
                   deft_net_device_handle_t** sendDevComm);
    int (*accept)(void* listenComm, void** recvComm, deft_net_device_handle_t** recvDevComm);
    int (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
    int (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                       void** mhandle);
    int (*deregMr)(void* comm, void* mhandle);
    int (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                 void** request);
    int (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                 void** phandles, void** request);
    int (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
    int (*test)(void* request, int* done, int* sizes);
    int (*closeSend)(void* sendComm);
    int (*closeRecv)(void* recvComm);
    int (*closeListen)(void* listenComm);
    int (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
    int (*irecvConsumed)(void* recvComm, int n, void* request);
    int (*makeVDevice)(int* d, deft_net_vprops_v12_t* props);
    int (*finalize)(void* ctx);
    int (*setNetAttr)(void* ctx, deft_net_attr_t* attr);
} deft_net_v12_t;

#ifdef __cplusplus
} /* extern "C" */
#define DEFT_ABI_ASSERT(condition) static_assert(condition, "NCCL net ABI layout")
#else
#define DEFT_ABI_ASSERT(condition) _Static_assert(condition, "NCCL net ABI layout")
#endif

DEFT_ABI_ASSERT(sizeof(deft_net_v6_t) == 136);
DEFT_ABI_ASSERT(sizeof(deft_net_v7_t) == 152);
DEFT_ABI_ASSERT(sizeof(deft_net_v8_t) == 152);
DEFT_ABI_ASSERT(sizeof(deft_net_v9_t) == 160);
DEFT_ABI_ASSERT(sizeof(deft_net_v10_t) == 160);
DEFT_ABI_ASSERT(sizeof(deft_net_v11_t) == 176);
DEFT_ABI_ASSERT(sizeof(deft_net_v12_t) == 176);
DEFT_ABI_ASSERT(sizeof(deft_net_props_v6_t) == 48);
DEFT_ABI_ASSERT(sizeof(deft_net_props_v7_t) == 56);
DEFT_ABI_ASSERT(sizeof(deft_net_props_v8_t) == 64);
DEFT_ABI_ASSERT(sizeof(deft_net_props_v9_t) == 104);
DEFT_ABI_ASSERT(sizeof(deft_net_props_v11_t) == 112);
DEFT_ABI_ASSERT(sizeof(deft_net_props_v12_t) == 128);
DEFT_ABI_ASSERT(sizeof(deft_net_device_handle_t) == 32);
DEFT_ABI_ASSERT(sizeof(deft_net_attr_t) == 44);
DEFT_ABI_ASSERT(offsetof(deft_net_props_v11_t, vProps) == 64);
DEFT_ABI_ASSERT(offsetof(deft_net_props_v11_t, maxP2pBytes) == 88);
DEFT_ABI_ASSERT(offsetof(deft_net_props_v11_t, maxCollBytes) == 96);
DEFT_ABI_ASSERT(offsetof(deft_net_props_v11_t, maxMultiRequestSize) == 104);
DEFT_ABI_ASSERT(offsetof(deft_net_props_v12_t, speed) == 36);
DEFT_ABI_ASSERT(offsetof(deft_net_props_v12_t, vProps) == 64);
DEFT_ABI_ASSERT(offsetof(deft_net_props_v12_t, maxP2pBytes) == 104);
DEFT_ABI_ASSERT(offsetof(deft_net_props_v12_t, maxMultiRequestSize) == 120);
DEFT_ABI_ASSERT(offsetof(deft_net_props_v12_t, railId) == 124);
DEFT_ABI_ASSERT(offsetof(deft_net_props_v12_t, planeId) == 126);

#endif /* DEFT_ABI_NET_H */
