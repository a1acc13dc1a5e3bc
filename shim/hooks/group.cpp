// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/group.h"

#include <vector>

#include "base/log.h"
#include "shim/control/director.h"
#include "shim/hooks/communicator.h"
#include "shim/hooks/councils.h"
#include "shim/hooks/rendezvous.h"
#include "shim/hooks/unfinished_children.h"
#include "shim/nccl/registry.h"
#include "shim/runtime/background_thread.h"

namespace deft::group {
namespace {

struct Grouped {
    Pending pending;
    CommunicatorPin entry;  // once it is registered
};

thread_local unsigned t_depth = 0;
thread_local const NcclTable* t_library = nullptr;
thread_local unsigned t_waiting = 0;  // levels that no library has heard of
// Allocated only while a group makes communicators, so that threads carry one pointer.
thread_local std::vector<Grouped>* t_pending = nullptr;

bool usable(int result) {
    return result == DEFT_NCCL_SUCCESS || result == DEFT_NCCL_IN_PROGRESS;
}

void dropped(const Pending& pending) noexcept {
    if (pending.council) {
        pending.council->leave();
    }
}

// Empty if there is nothing to register.
CommunicatorPin add(const Pending& pending, int result) noexcept {
    const deft_nccl_comm_t comm = handle_at(pending.where);
    if (comm == nullptr) {
        // A rank without colour, or NCCL gave none; or it will, when it has made a child.
        if (pending.watched && pending.parent_serial != 0) {
            UnfinishedChildren::process().note(pending);
        }
        dropped(pending);
        return {};
    }
    CommunicatorPin entry = enter(pending, comm);
    if (!entry) {
        dropped(pending);
        return entry;
    }
    if (pending.council && result == DEFT_NCCL_SUCCESS) {
        pending.council->created();
    }
    if (pending.watched && BackgroundThread::start()) {
        communicator::ask_details(*entry.get());
        communicator::tell_about_plugin();
    }
    return entry;
}

// Returns an error if the communicator had to be aborted, else `result`. May wait for the others'
// agreement, of whom some may belong to this thread: they have all been added before.
int admit(const Pending& pending, const CommunicatorPin& entry, int result) noexcept {
    if (!entry || !pending.watched || result != DEFT_NCCL_SUCCESS) {
        return result;
    }
    const deft_nccl_comm_t made = *pending.where;  // before the wait: another thread may end it
    if (rendezvous::acceptable(entry->council.load(std::memory_order_acquire),
                               entry->nranks.load(std::memory_order_relaxed))) {
        return result;
    }
    dropped(pending);
    // Whoever comes first tells the library; the address may be another communicator's after it.
    auto before = Communicator::Ended::No;
    if (entry->ended.compare_exchange_strong(before, Communicator::Ended::Aborted)) {
        if (auto* const director = entry->director.load(std::memory_order_acquire)) {
            director->end(true);
        }
        if (Registry::process().remove(made, entry.get()) && pending.table->CommAbort != nullptr) {
            pending.table->CommAbort(made);
        }
        councils::leave(*entry.get());
    }
    *pending.where = nullptr;
    return DEFT_NCCL_SYSTEM_ERROR;
}

}  // namespace

unsigned depth() noexcept {
    return t_depth;
}

void start(const NcclTable* library) noexcept {
    if (t_depth++ == 0) {
        t_library = library;
    }
    t_waiting += library == nullptr ? 1 : 0;
}

bool waits() noexcept {
    return t_waiting > 0;
}

void begin(const NcclTable* library) noexcept {
    t_library = library;
    for (; t_waiting > 0; --t_waiting) {
        if (library->GroupStart != nullptr) {
            library->GroupStart();
        }
    }
}

const NcclTable* library() noexcept {
    return t_library;
}

bool end() noexcept {
    if (t_depth > 0) {
        --t_depth;
    }
    return t_depth == 0;
}

int made(const Pending& pending, int result) noexcept {
    if (!usable(result) || pending.where == nullptr) {
        dropped(pending);
        return result;
    }
    if (t_depth == 0) {
        return admit(pending, add(pending, result), result);
    }
    try {
        if (t_pending == nullptr) {
            t_pending = new std::vector<Grouped>();
        }
        t_pending->push_back({pending, {}});
    } catch (...) {
        DEFT_WARN_ONCE("out of memory: a communicator is forwarded unobserved");
        dropped(pending);
    }
    return result;
}

CommunicatorPin enter(const Pending& pending, deft_nccl_comm_t comm) noexcept {
    CommunicatorPin entry =
        Registry::process().add(comm, pending.table, pending.hash, pending.rank, pending.nranks);
    if (!entry) {
        DEFT_WARN_ONCE("more than %zu communicators at once; the others are forwarded unobserved",
                       Registry::kCapacity);
        return entry;
    }
    councils::put(entry->council, pending.council);
    councils::put(entry->parent, pending.parent);
    entry->network.store(pending.network, std::memory_order_release);
    entry->shares.store(pending.shares, std::memory_order_relaxed);
    entry->choices.store(pending.choices, std::memory_order_release);
    entry->began_ns.store(pending.began_ns, std::memory_order_relaxed);
    return entry;
}

int settle(int result) noexcept {
    if (t_pending == nullptr) {
        return result;
    }
    int answer = result;
    for (Grouped& grouped : *t_pending) {
        if (usable(result)) {
            grouped.entry = add(grouped.pending, result);
        } else {
            dropped(grouped.pending);
        }
    }
    for (const Grouped& grouped : *t_pending) {
        if (const int admitted = admit(grouped.pending, grouped.entry, result);
            admitted != result) {
            answer = admitted;
        }
    }
    delete t_pending;
    t_pending = nullptr;
    return answer;
}

}  // namespace deft::group
