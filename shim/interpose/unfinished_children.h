// SPDX-License-Identifier: Apache-2.0
// Children of nonblocking communicators on their way: NCCL stores the handle of one only when the
// split or shrink is complete, which a thread of its own does after the call has returned.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "shim/interpose/group.h"

namespace deft {

// What is at an address that NCCL's thread may be storing to.
deft_nccl_comm_t handle_at(deft_nccl_comm_t* where) noexcept;

class UnfinishedChildren {
public:
    static UnfinishedChildren& process();

    void note(const group::Pending& child) noexcept;
    // The children of this parent that have their handles, once: the job has heard from NCCL that
    // the parent's operation is over, with `error`. Only then is their place looked at, for until
    // then the job has to keep it; later it may be another variable's.
    std::vector<group::Pending> take(std::uint32_t parent_serial, int error) noexcept;
    // What has been taken is registered. Who takes holds `resolving` up to here: another thread
    // that asks at the same time may use the children as soon as it has its answer.
    void taken() noexcept;
    bool none() const noexcept { return count_.load(std::memory_order_acquire) == 0; }
    std::mutex resolving;
    // The parent ends.
    void forget(std::uint32_t parent_serial) noexcept;

private:
    // Of children_ and those taken: most processes never have any.
    std::atomic<std::size_t> count_{0};
    std::mutex mutex_;  // guards what follows
    std::vector<group::Pending> children_;
};

}  // namespace deft
