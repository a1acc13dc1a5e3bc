// SPDX-License-Identifier: Apache-2.0
#include "shim/interpose/communicator.h"

#include <time.h>
#include <unistd.h>

#include "shim/interpose/group.h"
#include "shim/interpose/mode.h"
#include "topology/base/log.h"
#include "topology/presence.h"

namespace deft::communicator {
namespace {

// FNV-1a, 64 bit.
constexpr std::uint64_t kBasis = 0xcbf29ce484222325u;

std::uint64_t mix(std::uint64_t hash, const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) {
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    return hash;
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    return mix(hash, &value, sizeof(value));
}

}  // namespace

std::uint64_t hash_of(const deft_nccl_unique_id_t& id) noexcept {
    return mix(kBasis, id.internal, sizeof(id.internal));
}

std::uint64_t local_hash() noexcept {
    static std::atomic<std::uint64_t> made{0};
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return mix(mix(mix(kBasis, made.fetch_add(1)), static_cast<std::uint64_t>(::getpid())),
               static_cast<std::uint64_t>(now.tv_sec) * 1000000000u +
                   static_cast<std::uint64_t>(now.tv_nsec));
}

std::uint64_t child_hash(Hook& hook, std::uint64_t color) noexcept {
    if (!hook.communicator()) {
        return 0;
    }
    const std::uint64_t parent = hook.communicator()->hash.load(std::memory_order_relaxed);
    const std::uint64_t index = hook.communicator()->children.fetch_add(1);
    return parent == 0 ? 0 : mix(mix(parent, index), color);
}

int starting(const Hook& hook) noexcept {
    // Before, not after: the plugin's init runs inside the call and looks at this.
    Presence::process().communicators_seen.fetch_add(1, std::memory_order_release);
    if (!shim_required()) {
        return DEFT_NCCL_SUCCESS;
    }
    const char* reason = shim_refusal();
    if (reason == nullptr && NcclLibraries::process().override_failed()) {
        reason = "DEFT_NCCL_LIB cannot be used";
    }
    (void)hook;
    if (reason != nullptr) {
        DEFT_WARN("DEFT_REQUIRE=1: the communicator fails because %s (see the message above)",
                  reason);
        return DEFT_NCCL_INVALID_ARGUMENT;
    }
    return DEFT_NCCL_SUCCESS;
}

int made(const Hook& hook, deft_nccl_comm_t* comm, std::uint64_t hash, int rank, int nranks,
         int result) noexcept {
    group::made({comm, hook.table(), hash, rank, nranks}, result);
    return result;
}

void ending(const Hook& hook, deft_nccl_comm_t comm, Function function) noexcept {
    Registry::process().remove(comm);
    counted(hook, function);
}

void counted(const Hook&, Function) noexcept {}

}  // namespace deft::communicator
