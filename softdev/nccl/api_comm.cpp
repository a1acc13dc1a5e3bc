// SPDX-License-Identifier: Apache-2.0
// A communicator's life after its making, questions to it, suspension, user reductions.
#include <cstring>

#include "softdev/cuda/softdev.h"
#include "softdev/nccl/api.h"
#include "softdev/nccl/env.h"

using namespace softdev::nccl;

namespace softdev::nccl {
namespace {

// NCCL_SUSPEND_MEM and ncclCommMemStat_t, which nccl.h has from 2.29.7 on.
constexpr int kSuspendMemory = 1;
enum { kMemorySuspendable = 0, kMemorySuspended = 1, kMemoryPersistent = 2, kMemoryTotal = 3 };

void refuse_inside_group(const Communicator& comm, const char* call) {
    if (group_depth() > 0 && group_queued(&comm) > 0) {
        const std::string text =
            format("%s inside a group that has %zu calls for this communicator", call,
                   group_queued(&comm));
        softdevReportOn(comm.device, "nccl: %s: %s", comm.name().c_str(), text.c_str());
        group_note_error(ncclInvalidUsage);
        throw Error(ncclInvalidUsage, text);
    }
}

}  // namespace
}  // namespace softdev::nccl

SOFTNCCL_API ncclResult_t pncclCommFinalize(ncclComm_t handle) {
    return api("CommFinalize", [&] {
        if (handle == nullptr) {
            return ncclSuccess;
        }
        const auto comm = find_communicator(handle, "CommFinalize");
        if (comm->finalized()) {
            throw Error(ncclInvalidArgument, "CommFinalize : communicator was finalized before");
        }
        if (comm->revoked()) {
            throw Error(ncclInvalidUsage, "CommFinalize : communicator was revoked");
        }
        require_ready(*comm, "CommFinalize");
        refuse_inside_group(*comm, "ncclCommFinalize");
        return implicit_group([&] { group_add(Job{comm, [comm] { comm->finalize(); }}); });
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommFinalize, (ncclComm_t))

SOFTNCCL_API ncclResult_t pncclCommDestroy(ncclComm_t handle) {
    return api("CommDestroy", [&] {
        if (handle == nullptr) {
            return ncclSuccess;
        }
        const auto comm = find_communicator(handle, "CommDestroy");
        refuse_inside_group(*comm, "ncclCommDestroy");
        if (comm->async_result() == ncclInProgress) {
            throw Error(ncclInvalidArgument,
                        "CommDestroy : Attempt to use communicator before the previous operation "
                        "returned ncclSuccess");
        }
        forget_communicator(handle);
        // A failed communicator has nothing to wait for.
        const bool good = comm->async_result() == ncclSuccess;
        // This call waits for it, also that of a nonblocking communicator: as in NCCL.
        on_job_thread([&] {
            comm->shut_down(good ? Communicator::End::kDestroy : Communicator::End::kAbort);
        });
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommDestroy, (ncclComm_t))

SOFTNCCL_API ncclResult_t pncclCommAbort(ncclComm_t handle) {
    return api("CommAbort", [&] {
        if (handle == nullptr) {
            return ncclSuccess;
        }
        const auto comm = find_communicator(handle, "CommAbort");
        forget_communicator(handle);
        comm->abort();
        if (group_depth() > 0) {
            group_add_abort(comm);  // what follows of it comes when the group ends
            return ncclSuccess;
        }
        on_job_thread([&] { comm->reclaim(); });
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommAbort, (ncclComm_t))

SOFTNCCL_API ncclResult_t pncclCommRevoke(ncclComm_t handle, int flags) {
    return api("CommRevoke", [&] {
        const auto comm = find_communicator(handle, "CommRevoke");
        if (flags != NCCL_REVOKE_DEFAULT) {
            throw Error(ncclInvalidArgument, format("CommRevoke : invalid flags %d", flags));
        }
        if (comm->finalized()) {
            throw Error(ncclInvalidArgument, "CommRevoke : communicator was finalized");
        }
        if (comm->revoked()) {
            throw Error(ncclInvalidArgument, "CommRevoke : communicator was revoked before");
        }
        return implicit_group([&] { group_add(Job{comm, [comm] { comm->revoke(); }}); });
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommRevoke, (ncclComm_t, int))

SOFTNCCL_API ncclResult_t pncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
    return api("CommGetAsyncError", [&] {
        const auto comm = find_communicator(handle, "ncclGetAsyncError");
        require_pointer(result, "ncclGetAsyncError", "asyncError");
        *result = comm->async_result();
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t*))

namespace {

ncclResult_t ask(ncclComm_t handle, const char* call, int* out,
                 int (*answer)(const Communicator&)) {
    return api(call, [&] {
        const auto comm = find_communicator(handle, call);
        require_pointer(out, call, "result");
        if (comm->async_result() == ncclInProgress) {
            throw Error(
                ncclInvalidArgument,
                "Attempt to use communicator before the previous operation returned ncclSuccess");
        }
        *out = answer(*comm);
        return ncclSuccess;
    });
}

}  // namespace

SOFTNCCL_API ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
    return ask(comm, "CommCount", count, [](const Communicator& c) { return c.nranks; });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommCount, (const ncclComm_t, int*))

SOFTNCCL_API ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
    return ask(comm, "CommCuDevice", device, [](const Communicator& c) { return c.device; });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommCuDevice, (const ncclComm_t, int*))

SOFTNCCL_API ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
    return ask(comm, "CommUserRank", rank, [](const Communicator& c) { return c.rank; });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommUserRank, (const ncclComm_t, int*))

// Of nccl.h 2.29.7.
SOFTNCCL_API ncclResult_t pncclCommSuspend(ncclComm_t handle, int flags) {
    return api("CommSuspend", [&] {
        const auto comm = find_communicator(handle, "CommSuspend");
        require_ready(*comm, "CommSuspend");
        if (comm->shares_network()) {
            throw Error(ncclInvalidUsage,
                        "CommSuspend : not with a communicator that shares resources");
        }
        if ((flags & kSuspendMemory) == 0) {
            return ncclSuccess;
        }
        refuse_inside_group(*comm, "ncclCommSuspend");
        return implicit_group([&] { group_add(Job{comm, [comm] { comm->suspend(); }}); });
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommSuspend, (ncclComm_t, int))

SOFTNCCL_API ncclResult_t pncclCommResume(ncclComm_t handle) {
    return api("CommResume", [&] {
        const auto comm = find_communicator(handle, "CommResume");
        if (!comm->suspended()) {
            throw Error(ncclInvalidUsage, "CommResume : communicator is not suspended");
        }
        return implicit_group([&] { group_add(Job{comm, [comm] { comm->resume(); }}); });
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommResume, (ncclComm_t))

SOFTNCCL_API ncclResult_t pncclCommMemStats(ncclComm_t handle, MemoryStatistic which,
                                            uint64_t* value) {
    return api("CommMemStats", [&] {
        const auto comm = find_communicator(handle, "CommMemStats");
        require_pointer(value, "CommMemStats", "value");
        switch (static_cast<int>(which)) {
            case kMemorySuspendable:
            case kMemoryTotal:
                *value = comm->buffer_bytes();
                return ncclSuccess;
            case kMemorySuspended:
                *value = comm->suspended() ? 1 : 0;
                return ncclSuccess;
            case kMemoryPersistent:
                *value = 0;
                return ncclSuccess;
            default:
                throw Error(ncclInvalidArgument, format("CommMemStats : there is no statistic %d",
                                                        static_cast<int>(which)));
        }
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommMemStats, (ncclComm_t, MemoryStatistic, uint64_t*))

SOFTNCCL_API ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar,
                                                    ncclDataType_t type,
                                                    ncclScalarResidence_t residence,
                                                    ncclComm_t handle) {
    return api("RedOpCreatePreMulSum", [&] {
        const auto comm = find_communicator(handle, "RedOpCreatePreMulSum");
        require_ready(*comm, "RedOpCreatePreMulSum");
        require_pointer(op, "RedOpCreatePreMulSum", "op");
        require_pointer(scalar, "RedOpCreatePreMulSum", "scalar");
        const size_t bytes = type_size(type);
        if (bytes == 0 || (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)) {
            throw Error(
                ncclInvalidArgument,
                format("RedOpCreatePreMulSum : invalid type %d or residence %d", type, residence));
        }
        Reduction reduction;
        reduction.kind = Arithmetic::kPreMulSum;
        reduction.type = type;
        if (residence == ncclScalarHostImmediate) {
            std::memcpy(&reduction.scalar, scalar, bytes);
        } else {
            reduction.device_scalar = scalar;
        }
        std::lock_guard lock(comm->operations_mutex);
        // Numbers depend on the communicator, so that one of another communicator is recognised.
        const int base = ncclNumOps + static_cast<int>(comm->hash % 100000) * 16;
        comm->next_operation = std::max(comm->next_operation, base) + 1;
        comm->operations[comm->next_operation] = reduction;
        *op = static_cast<ncclRedOp_t>(comm->next_operation);
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclRedOpCreatePreMulSum,
               (ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t))

SOFTNCCL_API ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
    return api("RedOpDestroy", [&] {
        if (op >= 0 && op < ncclNumOps) {
            throw Error(ncclInvalidArgument, "ncclRedOpDestroy : operator is a NCCL builtin.");
        }
        const auto comm = find_communicator(handle, "RedOpDestroy");
        std::lock_guard lock(comm->operations_mutex);
        if (comm->operations.erase(op) == 0) {
            throw Error(ncclInvalidArgument,
                        format("ncclRedOpDestroy : operator %d unknown to this communicator.", op));
        }
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t, ncclComm_t))
