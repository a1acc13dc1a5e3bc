// SPDX-License-Identifier: Apache-2.0
// Completion queues and their channels.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>

#include "base/mutex.h"
#include "softdev/verbs/event_queue.h"
#include "softdev/verbs/life.h"

namespace softdev::verbs {

struct Cq;

struct Channel : ibv_comp_channel {
    Life life;
    EventQueue<Cq*> events;
    int users = 0;  ///< completion queues; under Nic::mutex
};

struct Completion {
    ibv_wc wc{};
    const void* owner = nullptr;  ///< the queue pair
    /// Polling it gives back the room of all work requests up to this one.
    std::atomic<std::uint64_t>* freed = nullptr;
    std::uint64_t up_to = 0;
    bool solicited = false;
    std::chrono::steady_clock::time_point not_before{};
};

/// A work completion of which nothing is valid but what is set afterwards: the rest is garbage.
ibv_wc garbage_completion();

struct Cq : ibv_cq {
    Life life;
    int users = 0;  ///< queue pairs; under Nic::mutex
    std::atomic<unsigned> events_got{0};

    /// False: it was full. The queue takes and gives nothing new from then on.
    bool push(const Completion& completion);
    int poll(int most, ibv_wc* out);
    void request_notification(bool solicited_only);
    /// Completions of a queue pair that goes.
    void drop(const void* owner);
    /// Whether nobody has asked before: for what is told once, of a queue that was full.
    bool first_loss() { return !loss_told_.exchange(true); }
    /// `entries` more than are in it now? Then the queue has that room from now on.
    bool resize(int entries);

private:
    enum class Armed { no, solicited, any };
    std::atomic<bool> loss_told_{false};
    deft::Mutex mutex_;
    std::deque<Completion> entries_ DEFT_GUARDED_BY(mutex_);
    Armed armed_ DEFT_GUARDED_BY(mutex_) = Armed::no;
    bool overrun_ DEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace softdev::verbs
