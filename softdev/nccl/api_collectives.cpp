// SPDX-License-Identifier: Apache-2.0
// Collectives, sends and receives.
#include <cuda.h>

#include "softdev/cuda/softdev.h"
#include "softdev/nccl/api.h"

using namespace softdev::nccl;

namespace softdev::nccl {

void require_ready(const Communicator& comm, const char* call) {
    if (comm.finalized() && !comm.revoked()) {
        throw Error(ncclInvalidArgument, format("%s : communicator was finalized", call));
    }
    if (comm.revoked()) {
        throw Error(ncclInvalidUsage, format("%s : communicator was revoked", call));
    }
    if (comm.suspended()) {
        throw Error(ncclInvalidUsage, format("%s : communicator is suspended", call));
    }
    const ncclResult_t state = comm.async_result();
    if (state == ncclInProgress) {
        throw Error(
            ncclInvalidArgument,
            "Attempt to use communicator before the previous operation returned ncclSuccess");
    }
    if (state != ncclSuccess) {
        throw Error(state,
                    format("%s : the communicator has failed before: %s", call, last_error()));
    }
}

namespace {

struct Call {
    Function function;
    const void* send;
    void* receive;
    size_t count;
    ncclDataType_t type;
    int op;
    int root;
    cudaStream_t stream;
};

Reduction reduction_of(const Call& call, Communicator& comm, const char* name) {
    if (call.op < 0 || call.op > ncclMaxRedOp) {
        throw Error(ncclInvalidArgument,
                    format("%s : invalid reduction operation %d", name, call.op));
    }
    if (call.op < ncclNumOps) {
        return make_reduction(static_cast<ncclRedOp_t>(call.op), call.type, comm.nranks);
    }
    std::lock_guard lock(comm.operations_mutex);
    const auto found = comm.operations.find(call.op);
    if (found == comm.operations.end()) {
        throw Error(
            ncclInvalidArgument,
            format("%s : reduction operation %d unknown to this communicator", name, call.op));
    }
    if (found->second.type != call.type) {
        throw Error(ncclInvalidArgument,
                    format("%s : data type %s passed to a reduction operation made for %s", name,
                           type_name(call.type), type_name(found->second.type)));
    }
    return found->second;
}

void check_buffers(const Task& task, const char* name) {
    const size_t one = task.count * type_size(task.type);
    const bool at_root = task.root < 0 || task.root == task.communicator->rank;
    if (one == 0) {
        return;
    }
    const bool reads =
        task.function != Function::kRecv &&
        ((task.function != Function::kBroadcast && task.function != Function::kScatter) || at_root);
    const bool writes =
        task.function != Function::kSend &&
        ((task.function != Function::kReduce && task.function != Function::kGather) || at_root);
    if ((reads && task.send == nullptr) || (writes && task.receive == nullptr)) {
        throw Error(ncclInvalidArgument,
                    format("%s : %s is NULL", name,
                           reads && task.send == nullptr ? "sendbuff" : "recvbuff"));
    }
}

// Buffers that overlap have to be in place, exactly: NCCL says nothing else and computes nonsense.
void check_overlap(const Task& task, const char* name) {
    const Communicator& comm = *task.communicator;
    const size_t one = task.count * type_size(task.type);
    const size_t all = one * static_cast<size_t>(comm.nranks);
    const size_t own = one * static_cast<size_t>(comm.rank);
    const bool at_root = task.root == comm.rank;
    size_t read = one;
    size_t written = one;
    size_t send_in_place = 0;     // where in the receive buffer the send buffer may be
    size_t receive_in_place = 0;  // the other way round
    bool allowed = true;
    switch (task.function) {
        case Function::kAllReduce:
            break;
        case Function::kReduce:
        case Function::kBroadcast:
            if (!at_root) {
                return;
            }
            break;
        case Function::kAllGather:
            written = all;
            send_in_place = own;
            break;
        case Function::kReduceScatter:
            read = all;
            receive_in_place = own;
            break;
        case Function::kAlltoAll:
            read = written = all;
            allowed = false;
            break;
        case Function::kGather:
            if (!at_root) {
                return;
            }
            written = all;
            send_in_place = own;
            break;
        case Function::kScatter:
            if (!at_root) {
                return;
            }
            read = all;
            receive_in_place = own;
            break;
        case Function::kSend:
        case Function::kRecv:
            return;
    }
    const auto from = reinterpret_cast<uintptr_t>(task.send);
    const auto to = reinterpret_cast<uintptr_t>(task.receive);
    const bool overlap = one > 0 && from < to + written && to < from + read;
    if (overlap && !(allowed && from + receive_in_place == to + send_in_place)) {
        const std::string text = format(
            "nccl%s: sendbuff %p (%zu bytes) and recvbuff %p (%zu bytes) overlap and are "
            "not in place",
            name, task.send, read, task.receive, written);
        softdevReportOn(comm.device, "nccl: %s: %s", comm.name().c_str(), text.c_str());
        throw Error(ncclInvalidUsage, text);
    }
}

ncclResult_t enqueue(const Call& call, ncclComm_t handle) {
    const char* name = function_name(call.function);
    return api(name, [&] {
        return implicit_group([&] {
            Task task;
            task.communicator = find_communicator(handle, name);
            Communicator& comm = *task.communicator;
            require_ready(comm, name);
            if (type_size(call.type) == 0) {
                throw Error(ncclInvalidArgument, format("%s : invalid type %d", name, call.type));
            }
            if (call.count >
                SIZE_MAX / 2 / type_size(call.type) / static_cast<size_t>(comm.nranks)) {
                // NCCL does not look: its kernel would fault. As other misuse of memory it is
                // refused.
                const std::string text =
                    format("nccl%s: count %zu of %s is more than memory can hold", name, call.count,
                           type_name(call.type));
                softdevReportOn(comm.device, "nccl: %s: %s", comm.name().c_str(), text.c_str());
                throw Error(ncclInvalidArgument, text);
            }
            const bool message =
                call.function == Function::kSend || call.function == Function::kRecv;
            const bool rooted = message || call.function == Function::kReduce ||
                                call.function == Function::kBroadcast ||
                                call.function == Function::kGather ||
                                call.function == Function::kScatter;
            if (rooted && (call.root < 0 || call.root >= comm.nranks)) {
                throw Error(ncclInvalidArgument,
                            format("%s : invalid %s %d (%s should be in the 0..%d range)", name,
                                   message ? "peer" : "root", call.root, message ? "peer" : "root",
                                   comm.nranks));
            }
            task.function = call.function;
            task.send = call.send;
            task.receive = call.receive;
            task.count = call.count;
            task.type = call.type;
            task.op = call.op;
            task.root = rooted ? call.root : -1;
            task.stream = reinterpret_cast<CUstream>(call.stream);
            const CUdevice device = softdevStreamDevice(task.stream);
            const bool implicit = task.stream == nullptr || task.stream == CU_STREAM_LEGACY ||
                                  task.stream == CU_STREAM_PER_THREAD;
            if (device < 0 && !implicit) {
                softdevReportOn(comm.device,
                                "nccl: %s: nccl%s: %p is no stream, or a destroyed one",
                                comm.name().c_str(), name, static_cast<void*>(task.stream));
                throw Error(ncclUnhandledCudaError,
                            format("%s : Cuda failure 'invalid resource handle'", name));
            }
            if (device >= 0 && task.stream != nullptr && device != comm.device) {
                throw Error(ncclInvalidArgument,
                            format("%s : the stream belongs to device %d, the communicator to %d",
                                   name, device, comm.device));
            }
            task.reduction.type = call.type;
            if (call.op >= 0 || call.function == Function::kAllReduce ||
                call.function == Function::kReduce || call.function == Function::kReduceScatter) {
                task.reduction = reduction_of(call, comm, name);
            }
            check_buffers(task, name);
            if (comm.limits.strict) {
                check_overlap(task, name);
            }
            log_info(kSubsysColl,
                     "%s: opCount %llx sendbuff %p recvbuff %p count %zu datatype %d op %d root %d "
                     "comm %p [nranks=%d] "
                     "stream %p",
                     name, static_cast<unsigned long long>(comm.collective_number), call.send,
                     call.receive, call.count, call.type, call.op, call.root,
                     static_cast<void*>(handle), comm.nranks, static_cast<void*>(call.stream));
            group_add(std::move(task));
        });
    });
}

}  // namespace
}  // namespace softdev::nccl

SOFTNCCL_API ncclResult_t pncclAllReduce(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                         cudaStream_t stream) {
    return enqueue({Function::kAllReduce, send, receive, count, type, op, -1, stream}, comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclAllReduce,
               (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclReduce(const void* send, void* receive, size_t count,
                                      ncclDataType_t type, ncclRedOp_t op, int root,
                                      ncclComm_t comm, cudaStream_t stream) {
    return enqueue({Function::kReduce, send, receive, count, type, op, root, stream}, comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclReduce,
               (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                cudaStream_t))

SOFTNCCL_API ncclResult_t pncclBroadcast(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, int root, ncclComm_t comm,
                                         cudaStream_t stream) {
    return enqueue({Function::kBroadcast, send, receive, count, type, -1, root, stream}, comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclBroadcast,
               (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclBcast(void* buffer, size_t count, ncclDataType_t type, int root,
                                     ncclComm_t comm, cudaStream_t stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, comm,
                         stream);  // by the public name, as NCCL does
}
SOFTNCCL_ALIAS(ncclResult_t, ncclBcast,
               (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclAllGather(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, ncclComm_t comm,
                                         cudaStream_t stream) {
    return enqueue({Function::kAllGather, send, receive, count, type, -1, -1, stream}, comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclAllGather,
               (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclReduceScatter(const void* send, void* receive, size_t count,
                                             ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                             cudaStream_t stream) {
    return enqueue({Function::kReduceScatter, send, receive, count, type, op, -1, stream}, comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclReduceScatter,
               (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclAlltoAll(const void* send, void* receive, size_t count,
                                        ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    return enqueue({Function::kAlltoAll, send, receive, count, type, -1, -1, stream}, comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclAlltoAll,
               (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclGather(const void* send, void* receive, size_t count,
                                      ncclDataType_t type, int root, ncclComm_t comm,
                                      cudaStream_t stream) {
    return enqueue({Function::kGather, send, receive, count, type, -1, root, stream}, comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclGather,
               (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclScatter(const void* send, void* receive, size_t count,
                                       ncclDataType_t type, int root, ncclComm_t comm,
                                       cudaStream_t stream) {
    return enqueue({Function::kScatter, send, receive, count, type, -1, root, stream}, comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclScatter,
               (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
    return enqueue({Function::kSend, send, nullptr, count, type, -1, peer, stream}, comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclSend,
               (const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclRecv(void* receive, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
    return enqueue({Function::kRecv, nullptr, receive, count, type, -1, peer, stream}, comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclRecv,
               (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))
