// SPDX-License-Identifier: Apache-2.0
// Children of nonblocking communicators on their way. NCCL stores the handle of one only when the
// split or shrink is complete, which a thread of its own does after the call has returned.
//
// Nobody tells when that is. The job may wait at its variable, take the handle out, and free the
// variable at once: PyTorch's is a member of an object. So the variable is read by the kernel,
// which answers with an error where there is no memory any more, and what it holds is only
// compared: a child is known when the job itself passes its handle in a call. NCCL is never asked
// about a value that was found in memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/mutex.h"
#include "shim/hooks/group.h"
#include "shim/nccl/registry.h"

namespace deft {

// What is at an address that NCCL's thread may be storing to, while the job's call lasts.
deft_nccl_comm_t handle_at(deft_nccl_comm_t* where) noexcept;

class UnfinishedChildren {
public:
    // Those that have been begun last; an older one stays unknown, and NCCL carries its calls.
    static constexpr std::size_t kCapacity = 64;

    static UnfinishedChildren& process();

    constexpr UnfinishedChildren() = default;

    bool none() const noexcept { return count_.load(std::memory_order_acquire) == 0; }

    void note(const group::Pending& child) noexcept;

    // The job makes a call on a communicator that no hook saw made. If it is one of these children,
    // of this library: registers it and returns its entry. Of two threads that come at the same
    // time both get it.
    // Null: of any library.
    CommunicatorPin claim(deft_nccl_comm_t comm, const NcclTable* table) noexcept;

    // How many have been begun.
    std::uint64_t begun() const noexcept { return begun_.load(std::memory_order_acquire); }
    // The job is about to hear from NCCL that the parent's operation is over, with `error`: it may
    // free the variables when it has. They are read now, and not again; after an error none comes.
    // Of those that had been begun when NCCL was asked: it says nothing of others.
    void parent_done(std::uint32_t parent_serial, std::uint64_t begun, int error) noexcept;
    // The job is about to have another handle stored at [where, where + count). What is there now
    // is read, and not again.
    void reused(deft_nccl_comm_t* where, int count) noexcept;
    // The parent ends: what has not been used by now stays unknown.
    void forget(std::uint32_t parent_serial) noexcept;

private:
    struct Child {
        group::Pending begun{};
        deft_nccl_comm_t handle = nullptr;  // null: not read yet
        std::uint64_t number = 0;           // from 1 on; 0: the place is free
    };

    void look(Child& child) noexcept DEFT_REQUIRES(mutex_);
    void drop(Child& child) noexcept DEFT_REQUIRES(mutex_);

    std::atomic<std::size_t> count_{0};  // most processes never have any
    std::atomic<std::uint64_t> begun_{0};
    Mutex mutex_;
    std::array<Child, kCapacity> children_ DEFT_GUARDED_BY(mutex_){};
};

}  // namespace deft
