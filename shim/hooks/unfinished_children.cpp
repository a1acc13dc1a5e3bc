// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/unfinished_children.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace deft {
namespace {

constexpr std::size_t kHandleBytes = sizeof(deft_nccl_comm_t);

// Null also where nothing is mapped, or where a sandbox refuses the call: then the child stays
// unknown.
deft_nccl_comm_t read_handle(deft_nccl_comm_t* where) noexcept {
    deft_nccl_comm_t handle = nullptr;
    const iovec to{static_cast<void*>(&handle), kHandleBytes};
    const iovec from{static_cast<void*>(where), kHandleBytes};
    const long got = ::syscall(SYS_process_vm_readv, ::getpid(), &to, 1, &from, 1, 0);
    return got == static_cast<long>(kHandleBytes) ? handle : nullptr;
}

}  // namespace

deft_nccl_comm_t handle_at(deft_nccl_comm_t* where) noexcept {
    return __atomic_load_n(where, __ATOMIC_ACQUIRE);
}

UnfinishedChildren& UnfinishedChildren::process() {
    static auto& children = *new UnfinishedChildren;  // never destroyed: threads may outlive exit()
    return children;
}

void UnfinishedChildren::note(const group::Pending& child) noexcept {
    const MutexLock lock(mutex_);
    const std::uint64_t number = begun_.load(std::memory_order_relaxed) + 1;
    Child& place = children_[number % kCapacity];
    if (place.number == 0) {
        count_.fetch_add(1, std::memory_order_release);
    }
    place = {child, nullptr, number};
    begun_.store(number, std::memory_order_release);
}

void UnfinishedChildren::look(Child& child) noexcept {
    if (child.handle == nullptr && child.begun.where != nullptr) {
        child.handle = read_handle(child.begun.where);
    }
}

void UnfinishedChildren::drop(Child& child) noexcept {
    child = {};
    count_.fetch_sub(1, std::memory_order_release);
}

CommunicatorPin UnfinishedChildren::claim(deft_nccl_comm_t comm, const NcclTable* table) noexcept {
    if (comm == nullptr) {
        return {};
    }
    const MutexLock lock(mutex_);
    if (CommunicatorPin known = Registry::process().find(comm)) {
        return known;  // another thread was first
    }
    CommunicatorPin entry;
    for (Child& child : children_) {
        if (child.number == 0 || (table != nullptr && child.begun.table != table)) {
            continue;
        }
        look(child);
        if (child.handle != comm) {
            continue;
        }
        if (!entry) {
            entry = group::enter(child.begun, comm);
        }
        drop(child);  // any further one holds an old value: the address is this communicator's now
    }
    return entry;
}

void UnfinishedChildren::parent_done(std::uint32_t parent_serial, std::uint64_t begun,
                                     int error) noexcept {
    const MutexLock lock(mutex_);
    for (Child& child : children_) {
        if (child.number == 0 || child.number > begun ||
            child.begun.parent_serial != parent_serial) {
            continue;
        }
        look(child);
        child.begun.where = nullptr;
        if (error != DEFT_NCCL_SUCCESS || child.handle == nullptr) {
            drop(child);
        }
    }
}

void UnfinishedChildren::reused(deft_nccl_comm_t* where, int count) noexcept {
    const MutexLock lock(mutex_);
    for (Child& child : children_) {
        if (child.number != 0 && child.begun.where >= where && child.begun.where < where + count) {
            look(child);
            child.begun.where = nullptr;
            if (child.handle == nullptr) {
                drop(child);
            }
        }
    }
}

void UnfinishedChildren::forget(std::uint32_t parent_serial) noexcept {
    const MutexLock lock(mutex_);
    for (Child& child : children_) {
        if (child.number != 0 && child.begun.parent_serial == parent_serial) {
            drop(child);
        }
    }
}

}  // namespace deft
