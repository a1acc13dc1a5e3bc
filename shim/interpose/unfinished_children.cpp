// SPDX-License-Identifier: Apache-2.0
#include "shim/interpose/unfinished_children.h"

#include "topology/base/log.h"

namespace deft {

deft_nccl_comm_t handle_at(deft_nccl_comm_t* where) noexcept {
    return __atomic_load_n(where, __ATOMIC_ACQUIRE);
}

UnfinishedChildren& UnfinishedChildren::process() {
    static auto& children = *new UnfinishedChildren;  // never destroyed: threads outlive exit()
    return children;
}

void UnfinishedChildren::note(const group::Pending& child) noexcept {
    try {
        const std::lock_guard lock(mutex_);
        children_.push_back(child);
        count_.store(children_.size(), std::memory_order_release);
    } catch (...) {
        DEFT_WARN_ONCE("out of memory: a split communicator is forwarded unobserved");
    }
}

std::vector<group::Pending> UnfinishedChildren::take(std::uint32_t parent_serial,
                                                     int error) noexcept {
    std::vector<group::Pending> taken;
    if (error != DEFT_NCCL_SUCCESS) {
        forget(parent_serial);  // none will come of it
        return taken;
    }
    try {
        const std::lock_guard lock(mutex_);
        taken.reserve(children_.size());  // nothing below throws
        std::erase_if(children_, [&](const group::Pending& child) {
            // Without a handle this is the answer to a question asked before the split.
            if (child.parent_serial != parent_serial || handle_at(child.where) == nullptr) {
                return false;
            }
            taken.push_back(child);
            return true;
        });
    } catch (...) {
    }
    return taken;
}

void UnfinishedChildren::taken() noexcept {
    const std::lock_guard lock(mutex_);
    count_.store(children_.size(), std::memory_order_release);
}

void UnfinishedChildren::forget(std::uint32_t parent_serial) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase_if(children_, [parent_serial](const group::Pending& child) {
        return child.parent_serial == parent_serial;
    });
    count_.store(children_.size(), std::memory_order_release);
}

}  // namespace deft
