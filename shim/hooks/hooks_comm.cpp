// SPDX-License-Identifier: Apache-2.0
// Hooks of the calls that make and end communicators.
#include <algorithm>
#include <utility>

#include "shim/hooks/communicator.h"
#include "shim/hooks/hook.h"
#include "shim/hooks/rendezvous.h"
#include "shim/hooks/unfinished_children.h"

using deft::Function;
using deft::Hook;
namespace agreement = deft::agreement;
namespace communicator = deft::communicator;

#define DEFT_FORWARDABLE(name)                                      \
    if (hook.table() == nullptr || hook.table()->name == nullptr) { \
        return hook.unavailable();                                  \
    }

DEFT_HOOK int ncclCommInitRank(deft_nccl_comm_t* comm, int nranks, deft_nccl_unique_id_t id,
                               int rank) noexcept {
    const Hook hook(Function::CommInitRank, DEFT_CALLER);
    DEFT_FORWARDABLE(CommInitRank)
    if (const int refused = communicator::starting(hook, Function::CommInitRank)) {
        return refused;
    }
    deft::job_network::Config config(hook, &id, nullptr);
    auto council = deft::rendezvous::join(hook, id, nranks, rank, config.network());
    communicator::storing(hook, comm, 1);
    const int result = config.changed()
                           ? hook.table()->CommInitRankConfig(comm, nranks, id, rank, config.get())
                           : hook.table()->CommInitRank(comm, nranks, id, rank);
    return communicator::made(hook, comm, communicator::hash_of(id), rank, nranks, config, result,
                              std::move(council));
}

DEFT_HOOK int ncclCommInitRankConfig(deft_nccl_comm_t* comm, int nranks, deft_nccl_unique_id_t id,
                                     int rank, deft_nccl_config_t* config) noexcept {
    const Hook hook(Function::CommInitRankConfig, DEFT_CALLER);
    DEFT_FORWARDABLE(CommInitRankConfig)
    if (const int refused = communicator::starting(hook, Function::CommInitRankConfig)) {
        return refused;
    }
    deft::job_network::Config own(hook, &id, config);
    auto council = deft::rendezvous::join(hook, id, nranks, rank, own.network());
    communicator::storing(hook, comm, 1);
    const int result = hook.table()->CommInitRankConfig(comm, nranks, id, rank, own.get());
    return communicator::made(hook, comm, communicator::hash_of(id), rank, nranks, own, result,
                              std::move(council));
}

DEFT_HOOK int ncclCommInitRankScalable(deft_nccl_comm_t* comm, int nranks, int rank, int nid,
                                       deft_nccl_unique_id_t* ids,
                                       deft_nccl_config_t* config) noexcept {
    const Hook hook(Function::CommInitRankScalable, DEFT_CALLER);
    DEFT_FORWARDABLE(CommInitRankScalable)
    if (const int refused = communicator::starting(hook, Function::CommInitRankScalable)) {
        return refused;
    }
    // NCCL hashes the first id only; its trailer counts.
    const bool any = ids != nullptr && nid > 0;
    const std::uint64_t hash = any ? communicator::hash_of(ids[0]) : 0;
    deft::job_network::Config own(hook, any ? &ids[0] : nullptr, config);
    agreement::CouncilRef council;
    if (any) {
        council = deft::rendezvous::join(hook, ids[0], nranks, rank, own.network());
    }
    communicator::storing(hook, comm, 1);
    const int result = hook.table()->CommInitRankScalable(comm, nranks, rank, nid, ids, own.get());
    return communicator::made(hook, comm, hash, rank, nranks, own, result, std::move(council));
}

DEFT_HOOK int ncclCommInitAll(deft_nccl_comm_t* comms, int ndev, const int* devices) noexcept {
    const Hook hook(Function::CommInitAll, DEFT_CALLER);
    DEFT_FORWARDABLE(CommInitAll)
    if (const int refused = communicator::starting(hook, Function::CommInitAll)) {
        return refused;
    }
    if (deft::rendezvous::refuses_lone_process(hook, ndev)) {
        // Before the library makes them: there would be all of them to abort again.
        std::fill_n(comms, comms != nullptr ? ndev : 0, nullptr);
        return DEFT_NCCL_SYSTEM_ERROR;
    }
    deft::job_network::Config config(hook, nullptr, nullptr);
    communicator::storing(hook, comms, ndev);
    int result = DEFT_NCCL_SUCCESS;
    if (!config.changed() ||
        !deft::job_network::init_all(*hook.table(), comms, ndev, devices, config.get(), result)) {
        result = hook.table()->CommInitAll(comms, ndev, devices);
    }
    int answer = result;
    const std::uint64_t hash = communicator::local_hash();
    for (int rank = 0; comms != nullptr && rank < ndev; ++rank) {
        // Each hears the library's own result: what one of them comes to is not the next one's.
        if (const int own =
                communicator::made(hook, &comms[rank], hash, rank, ndev, config, result);
            own != result) {
            answer = own;
        }
    }
    return answer;
}

DEFT_HOOK int ncclCommSplit(deft_nccl_comm_t comm, int color, int key, deft_nccl_comm_t* child,
                            deft_nccl_config_t* config) noexcept {
    Hook hook(Function::CommSplit, comm, DEFT_CALLER);
    DEFT_FORWARDABLE(CommSplit)
    if (const int refused = communicator::starting(hook, Function::CommSplit)) {
        return refused;
    }
    const std::uint64_t hash = communicator::split_hash(hook, static_cast<std::uint64_t>(color));
    auto parent = communicator::council_of(hook);
    deft::job_network::Config own(hook, config);
    communicator::storing(hook, child, 1);
    const int result = hook.table()->CommSplit(comm, color, key, child, own.get());
    return color == DEFT_NCCL_SPLIT_NOCOLOR
               ? result
               : communicator::made_from(hook, std::move(parent), child, hash, own, result);
}

DEFT_HOOK int ncclCommShrink(deft_nccl_comm_t comm, int* excluded, int count,
                             deft_nccl_comm_t* child, deft_nccl_config_t* config,
                             int flags) noexcept {
    Hook hook(Function::CommShrink, comm, DEFT_CALLER);
    DEFT_FORWARDABLE(CommShrink)
    if (const int refused = communicator::starting(hook, Function::CommShrink)) {
        return refused;
    }
    const std::uint64_t hash = communicator::shrunk_hash(hook, excluded, count);
    auto parent = communicator::council_of(hook);
    if ((flags & DEFT_NCCL_SHRINK_ABORT) != 0) {
        communicator::cutting(hook);  // NCCL knows of its own operations only
    }
    deft::job_network::Config own(hook, config);
    communicator::storing(hook, child, 1);
    const int result = hook.table()->CommShrink(comm, excluded, count, child, own.get(), flags);
    communicator::lanes_aborted(hook);
    return communicator::made_from(hook, std::move(parent), child, hash, own, result);
}

// Ranks of `comm` call it, and those that join with a null one.
DEFT_HOOK int ncclCommGrow(deft_nccl_comm_t comm, int nranks, const deft_nccl_unique_id_t* id,
                           int rank, deft_nccl_comm_t* grown, deft_nccl_config_t* config) noexcept {
    Hook hook = comm != nullptr ? Hook(Function::CommGrow, comm, DEFT_CALLER)
                                : Hook(Function::CommGrow, DEFT_CALLER);
    DEFT_FORWARDABLE(CommGrow)
    if (const int refused = communicator::starting(hook, Function::CommGrow)) {
        return refused;
    }
    deft::job_network::Config own = comm != nullptr ? deft::job_network::Config(hook, config)
                                                    : deft::job_network::Config(hook, id, config);
    communicator::storing(hook, grown, 1);
    const int result = hook.table()->CommGrow(comm, nranks, id, rank, grown, own.get());
    return communicator::grown(hook, grown, comm != nullptr ? -1 : rank, nranks, own, result);
}

// For ncclCommGrow. It gets no trailer: the ranks of `comm` do not see it, but for one.
DEFT_HOOK int ncclCommGetUniqueId(deft_nccl_comm_t comm, deft_nccl_unique_id_t* id) noexcept {
    Hook hook(Function::CommGetUniqueId, comm, DEFT_CALLER);
    DEFT_FORWARDABLE(CommGetUniqueId)
    communicator::passing(hook, Function::CommGetUniqueId);
    return hook.table()->CommGetUniqueId(comm, id);
}

DEFT_HOOK int ncclCommSuspend(deft_nccl_comm_t comm, int flags) noexcept {
    Hook hook(Function::CommSuspend, comm, DEFT_CALLER);
    DEFT_FORWARDABLE(CommSuspend)
    communicator::suspending(hook);
    return communicator::suspended(hook, hook.table()->CommSuspend(comm, flags));
}

DEFT_HOOK int ncclCommResume(deft_nccl_comm_t comm) noexcept {
    Hook hook(Function::CommResume, comm, DEFT_CALLER);
    DEFT_FORWARDABLE(CommResume)
    communicator::passing(hook, Function::CommResume);
    return communicator::resumed(hook, hook.table()->CommResume(comm));
}

DEFT_HOOK int ncclCommFinalize(deft_nccl_comm_t comm) noexcept {
    Hook hook(Function::CommFinalize, comm, DEFT_CALLER);
    DEFT_FORWARDABLE(CommFinalize)
    communicator::counted(hook, Function::CommFinalize);
    communicator::finalizing(hook);
    return communicator::finalized(hook, hook.table()->CommFinalize(comm));
}

DEFT_HOOK int ncclCommDestroy(deft_nccl_comm_t comm) noexcept {
    Hook hook(Function::CommDestroy, comm, DEFT_CALLER);
    DEFT_FORWARDABLE(CommDestroy)
    communicator::stop_planning(hook, false);
    return communicator::ending(hook, comm, Function::CommDestroy) ? hook.table()->CommDestroy(comm)
                                                                   : DEFT_NCCL_SUCCESS;
}

DEFT_HOOK int ncclCommAbort(deft_nccl_comm_t comm) noexcept {
    Hook hook(Function::CommAbort, comm, DEFT_CALLER);
    DEFT_FORWARDABLE(CommAbort)
    communicator::stop_planning(hook, true);
    const int result = communicator::ending(hook, comm, Function::CommAbort)
                           ? hook.table()->CommAbort(comm)
                           : DEFT_NCCL_SUCCESS;
    communicator::lanes_aborted(hook);
    return result;
}

DEFT_HOOK int ncclCommRevoke(deft_nccl_comm_t comm, int flags) noexcept {
    Hook hook(Function::CommRevoke, comm, DEFT_CALLER);
    DEFT_FORWARDABLE(CommRevoke)
    communicator::counted(hook, Function::CommRevoke);
    communicator::cutting(hook);
    const int result = hook.table()->CommRevoke(comm, flags);
    communicator::lanes_aborted(hook);
    return result;
}

DEFT_HOOK int ncclCommGetAsyncError(deft_nccl_comm_t comm, int* error) noexcept {
    // NCCL calls this one itself in every enqueue and wait: look-up and forward, no more. The job's
    // own question is answered for the lanes too.
    Hook hook(Function::CommGetAsyncError, comm, DEFT_CALLER);
    DEFT_FORWARDABLE(CommGetAsyncError)
    const std::uint64_t begun = deft::UnfinishedChildren::process().begun();
    const int result = hook.table()->CommGetAsyncError(comm, error);
    return communicator::merge_async_error(hook, result, begun, error);
}
