// SPDX-License-Identifier: Apache-2.0
// Making communicators: by unique id, all at once, split, shrink, grow.
#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "softdev/nccl/api.h"
#include "softdev/nccl/bootstrap.h"
#include "softdev/nccl/env.h"

using namespace softdev::nccl;

namespace softdev::nccl {
namespace {

// Undoes a handle whose initialisation failed.
std::function<void(bool)> drop_on_failure(std::shared_ptr<Communicator> comm, ncclComm_t* out) {
    return [comm, out](bool good) {
        // A nonblocking caller keeps the handle: it asks for the error and aborts.
        if (!good && comm->config.blocking) {
            forget_communicator(comm->handle);
            comm->shut_down(Communicator::End::kAbort);
            *out = nullptr;
        }
    };
}

void add_init(ncclComm_t* out, int nranks, std::vector<ncclUniqueId> ids, int rank,
              const Config& config, const char* name, bool on_caller = false) {
    require_pointer(out, name, "newcomm");
    *out = nullptr;
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        throw Error(ncclInvalidArgument, format("Invalid rank requested : %d/%d", rank, nranks));
    }
    auto comm = std::make_shared<Communicator>(nranks, rank, config);
    comm->use_current_device();
    *out = register_communicator(comm);
    name_device_rank(*comm);
    group_add(Job{comm, [comm, ids = std::move(ids)] { comm->init(ids); },
                  drop_on_failure(comm, out), on_caller});
}

ncclResult_t init_rank(ncclComm_t* out, int nranks, std::vector<ncclUniqueId> ids, int rank,
                       const ncclConfig_t* config, const char* name, bool on_caller = false) {
    return api(name, [&] {
        log_version();
        return implicit_group([&] {
            const Config chosen = read_config(config, Config{});
            add_init(out, nranks, std::move(ids), rank, chosen, name, on_caller);
        });
    });
}

void require_parent(const Communicator& comm, const char* call, bool may_have_failed) {
    if (comm.finalized() && !comm.revoked()) {
        throw Error(ncclInvalidArgument, format("%s : communicator was finalized", call));
    }
    if (!may_have_failed && !comm.revoked()) {
        require_ready(comm, call);
    }
}

void add_derivation(const std::shared_ptr<Communicator>& parent, Communicator::Derivation wanted,
                    const Config& config, ncclComm_t* out) {
    *out = nullptr;
    std::shared_ptr<Communicator> child;
    if (wanted.color != NCCL_SPLIT_NOCOLOR) {
        child = std::make_shared<Communicator>(0, -1, config);
        child->device = parent->device;
        child->context = parent->context;
        register_communicator(child);
    }
    std::function<void(bool)> after;
    if (child) {
        after = [out, child](bool good) {
            child->set_result(good ? ncclSuccess : ncclInternalError);
            // As in NCCL the caller has no handle before; another thread may be looking. It gets
            // that of a child that failed too, and has to destroy it.
            __atomic_store_n(out, child->handle, __ATOMIC_RELEASE);
        };
        child->set_in_progress();
    }
    group_add(
        Job{parent, [parent, wanted, child] { parent->derive(wanted, child); }, std::move(after)});
}

// NCCL says of a derivation that it has been begun, not how far it is: outside a group that is
// success, also of a nonblocking communicator.
template <class Queue>
ncclResult_t begin_derivation(Queue&& queue) {
    const ncclResult_t result = implicit_group(std::forward<Queue>(queue));
    return result == ncclInProgress ? ncclSuccess : result;
}

}  // namespace
}  // namespace softdev::nccl

SOFTNCCL_API ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id,
                                            int rank) {
    // The only call that NCCL before 2.28 carries out without a group of its own.
    return init_rank(comm, nranks, {id}, rank, nullptr, "CommInitRank", group_depth() == 0);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommInitRank, (ncclComm_t*, int, ncclUniqueId, int))

SOFTNCCL_API ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id,
                                                  int rank, ncclConfig_t* config) {
    return init_rank(comm, nranks, {id}, rank, config, "CommInitRankConfig");
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommInitRankConfig,
               (ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*))

SOFTNCCL_API ncclResult_t pncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank,
                                                    int nids, ncclUniqueId* ids,
                                                    ncclConfig_t* config) {
    if (nids < 1 || nids > nranks || ids == nullptr) {
        return api("CommInitRankScalable", [&]() -> ncclResult_t {
            throw Error(ncclInvalidArgument,
                        format("CommInitRankScalable : invalid number of ids %d for %d ranks", nids,
                               nranks));
        });
    }
    return init_rank(comm, nranks, std::vector<ncclUniqueId>(ids, ids + nids), rank, config,
                     "CommInitRankScalable");
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommInitRankScalable,
               (ncclComm_t*, int, int, int, ncclUniqueId*, ncclConfig_t*))

SOFTNCCL_API ncclResult_t pncclCommInitAll(ncclComm_t* comms, int ndev, const int* devices) {
    return api("CommInitAll", [&] {
        log_version();
        require_pointer(comms, "CommInitAll", "comms");
        int available = 0;
        if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&available) != CUDA_SUCCESS ||
            available == 0) {
            throw Error(ncclUnhandledCudaError,
                        "Cuda failure 'no CUDA-capable device is detected'");
        }
        if (ndev < 1) {
            throw Error(ncclInvalidArgument, format("Invalid device count requested : %d", ndev));
        }
        if (devices == nullptr && ndev > available) {
            throw Error(ncclUnhandledCudaError, "Cuda failure 'invalid device ordinal'");
        }
        for (int i = 0; i < ndev && devices != nullptr; ++i) {
            if (devices[i] < 0 || devices[i] >= available) {
                throw Error(ncclInvalidArgument, format("Invalid device %d requested", devices[i]));
            }
            for (int j = 0; j < i; ++j) {
                if (devices[i] == devices[j]) {
                    throw Error(ncclInvalidUsage,
                                format("Device %d used more than once", devices[i]));
                }
            }
        }
        const ncclUniqueId id = make_unique_id();
        CUcontext before = nullptr;
        cuCtxGetCurrent(&before);
        const ncclResult_t result = implicit_group([&] {
            for (int i = 0; i < ndev; ++i) {
                CUcontext context = nullptr;
                if (cuDevicePrimaryCtxRetain(&context, devices != nullptr ? devices[i] : i) !=
                        CUDA_SUCCESS ||
                    cuCtxSetCurrent(context) != CUDA_SUCCESS) {
                    throw Error(ncclUnhandledCudaError, "Cuda failure 'invalid device ordinal'");
                }
                add_init(&comms[i], ndev, {id}, i, read_config(nullptr, Config{}), "CommInitAll");
            }
            cuCtxSetCurrent(before);
        });
        return result;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommInitAll, (ncclComm_t*, int, const int*))

SOFTNCCL_API ncclResult_t pncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* out,
                                         ncclConfig_t* config) {
    return api("CommSplit", [&] {
        return begin_derivation([&] {
            const auto parent = find_communicator(handle, "CommSplit");
            require_pointer(out, "CommSplit", "newcomm");
            require_parent(*parent, "CommSplit", false);
            if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
                throw Error(ncclInvalidArgument, format("CommSplit : invalid color %d", color));
            }
            Config inherited = parent->config;
            inherited.split_share = false;
            const Config chosen =
                read_config(config, config == nullptr ? parent->config : inherited);
            Communicator::Derivation wanted;
            wanted.who.resize(static_cast<size_t>(parent->nranks));
            std::iota(wanted.who.begin(), wanted.who.end(), 0);
            wanted.number = parent->next_derivation(false);
            wanted.color = color;
            wanted.order = key;
            wanted.share = chosen.split_share && !parent->revoked();
            add_derivation(parent, std::move(wanted), chosen, out);
        });
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommSplit, (ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*))

SOFTNCCL_API ncclResult_t pncclCommShrink(ncclComm_t handle, int* exclude, int count,
                                          ncclComm_t* out, ncclConfig_t* config, int flags) {
    return api("CommShrink", [&] {
        return begin_derivation([&] {
            const auto parent = find_communicator(handle, "CommShrink");
            require_pointer(out, "CommShrink", "newcomm");
            const bool abort = (flags & NCCL_SHRINK_ABORT) != 0;
            if ((flags & ~NCCL_SHRINK_ABORT) != 0 || count <= 0 || count >= parent->nranks ||
                exclude == nullptr) {
                throw Error(ncclInvalidArgument,
                            format("CommShrink : invalid flags %d or number of excluded ranks %d "
                                   "of %d",
                                   flags, count, parent->nranks));
            }
            require_parent(*parent, "CommShrink", abort);
            Communicator::Derivation wanted;
            for (int rank = 0; rank < parent->nranks; ++rank) {
                if (std::find(exclude, exclude + count, rank) == exclude + count) {
                    wanted.who.push_back(rank);
                }
            }
            for (int i = 0; i < count; ++i) {
                if (exclude[i] < 0 || exclude[i] >= parent->nranks || exclude[i] == parent->rank) {
                    throw Error(ncclInvalidArgument,
                                format("CommShrink : rank %d of %d cannot exclude rank %d",
                                       parent->rank, parent->nranks, exclude[i]));
                }
            }
            const Config chosen = read_config(config, parent->config);
            wanted.shrink = true;
            wanted.number = parent->next_derivation(true);
            wanted.order = parent->rank;
            // Nothing of an aborted or revoked parent can be shared.
            wanted.share = chosen.shrink_share && !abort && !parent->revoked();
            if (abort) {
                parent->revoke();
            }
            add_derivation(parent, std::move(wanted), chosen, out);
        });
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommShrink,
               (ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int))

SOFTNCCL_API ncclResult_t pncclCommGetUniqueId(ncclComm_t handle, ncclUniqueId* id) {
    return api("CommGetUniqueId", [&] {
        const auto parent = find_communicator(handle, "CommGetUniqueId");
        require_pointer(id, "CommGetUniqueId", "uniqueId");
        require_parent(*parent, "CommGetUniqueId", false);
        *id = make_unique_id();
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t, ncclUniqueId*))

SOFTNCCL_API ncclResult_t pncclCommGrow(ncclComm_t handle, int nranks, const ncclUniqueId* id,
                                        int rank, ncclComm_t* out, ncclConfig_t* config) {
    if (handle == nullptr && id != nullptr) {
        return init_rank(out, nranks, {*id}, rank, config, "CommGrow");
    }
    return api("CommGrow", [&] {
        return implicit_group([&] {
            const auto parent = find_communicator(handle, "CommGrow");
            require_pointer(out, "CommGrow", "newcomm");
            require_parent(*parent, "CommGrow", false);
            if (nranks <= parent->nranks || rank != -1) {
                throw Error(ncclInvalidArgument,
                            format("CommGrow : %d ranks of %d, as rank %d; ranks of the parent "
                                   "pass -1",
                                   nranks, parent->nranks, rank));
            }
            // With a configuration nothing is inherited.
            const Config chosen =
                config == nullptr ? parent->config : read_config(config, Config{});
            auto grown = std::make_shared<Communicator>(nranks, parent->rank, chosen);
            grown->device = parent->device;
            grown->context = parent->context;
            *out = register_communicator(grown);
            name_device_rank(*grown);
            const uint64_t number = parent->next_growth();
            const std::optional<ncclUniqueId> own =
                id != nullptr ? std::optional(*id) : std::nullopt;
            group_add(Job{grown,
                          [parent, grown, own, number] {
                              grown->init({parent->share_id(own ? &*own : nullptr, number)});
                          },
                          drop_on_failure(grown, out)});
        });
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommGrow,
               (ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*, ncclConfig_t*))
