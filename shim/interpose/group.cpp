// SPDX-License-Identifier: Apache-2.0
#include "shim/interpose/group.h"

#include <vector>

#include "shim/interpose/communicator.h"
#include "shim/interpose/registry.h"
#include "shim/iteration/observer.h"
#include "topology/base/log.h"

namespace deft::group {
namespace {

thread_local unsigned t_depth = 0;
// Allocated only while a group makes communicators, so that threads carry one pointer.
thread_local std::vector<Pending>* t_pending = nullptr;

bool usable(int result) {
    return result == DEFT_NCCL_SUCCESS || result == DEFT_NCCL_IN_PROGRESS;
}

void add(const Pending& pending) noexcept {
    if (*pending.where == nullptr) {
        return;  // a rank without colour, or NCCL gave none
    }
    const CommunicatorPin entry = Registry::process().add(
        *pending.where, pending.table, pending.hash, pending.rank, pending.nranks);
    if (!entry) {
        DEFT_WARN_ONCE("more than %zu communicators at once; the others are forwarded unobserved",
                       Registry::kCapacity);
        return;
    }
    if (pending.watched && Observer::start()) {
        communicator::ask_details(*entry.get());
        communicator::tell_about_plugin();
    }
}

}  // namespace

unsigned depth() noexcept {
    return t_depth;
}

void start() noexcept {
    ++t_depth;
}

bool end() noexcept {
    if (t_depth > 0) {
        --t_depth;
    }
    return t_depth == 0;
}

void made(const Pending& pending, int result) noexcept {
    if (!usable(result) || pending.where == nullptr) {
        return;
    }
    if (t_depth == 0) {
        add(pending);
        return;
    }
    try {
        if (t_pending == nullptr) {
            t_pending = new std::vector<Pending>();
        }
        t_pending->push_back(pending);
    } catch (...) {
        DEFT_WARN_ONCE("out of memory: a communicator is forwarded unobserved");
    }
}

void settle(int result) noexcept {
    if (t_pending == nullptr) {
        return;
    }
    if (usable(result)) {
        for (const Pending& pending : *t_pending) {
            add(pending);
        }
    }
    delete t_pending;
    t_pending = nullptr;
}

}  // namespace deft::group
