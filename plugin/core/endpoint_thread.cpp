// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/endpoint_thread.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <memory>

#include "topology/base/fork_guard.h"
#include "topology/base/log.h"
#include "topology/base/thread.h"

namespace deft::net {
namespace {

constexpr std::size_t kStackBytes = 512 * 1024;

}  // namespace

bool EndpointThread::add(Endpoint& endpoint) {
    Entry entry{&endpoint, endpoint.moved()};
    if (!enter(entry)) {
        return false;
    }
    endpoint.thread = this;
    return true;
}

bool EndpointThread::adopt(std::unique_ptr<Endpoint>& endpoint) {
    Endpoint* const raw = endpoint.get();
    Entry entry{raw, raw->moved()};
    entry.own = std::move(endpoint);
    const bool entered = enter(entry);
    endpoint = std::move(entry.own);
    return entered;
}

// Takes the entry if it returns true.
bool EndpointThread::enter(Entry& entry) {
    ForkGuard::process().arm();
    if (ForkGuard::process().in_child()) {
        return false;
    }
    const std::unique_lock lock = list();
    entries_.push_back(std::move(entry));
    if (entries_.size() == 1 && !start()) {
        entry = std::move(entries_.back());
        entries_.pop_back();
        return false;
    }
    return true;
}

std::unique_ptr<Endpoint> EndpointThread::take_out() {
    const std::unique_lock lock = list();
    const auto found = std::find_if(entries_.begin(), entries_.end(), [](const Entry& entry) {
        return entry.own != nullptr && entry.own->over();
    });
    if (found == entries_.end()) {
        return nullptr;
    }
    std::unique_ptr<Endpoint> own = std::move(found->own);
    entries_.erase(found);
    generation_ += entries_.empty() ? 1 : 0;  // the thread ends
    return own;
}

void EndpointThread::remove(Endpoint& endpoint) {
    endpoint.thread = nullptr;
    endpoint.helper = nullptr;
    if (ForkGuard::process().in_child()) {
        return;  // nobody else has it, and the list may be locked for ever
    }
    bool last = false;
    {
        const std::unique_lock lock = list();
        std::erase_if(entries_, [&](const Entry& entry) { return entry.endpoint == &endpoint; });
        last = entries_.empty();
        generation_ += last ? 1 : 0;  // the thread ends
    }
    if (last) {
        wake();
    }
}

void EndpointThread::wake() {
    std::atomic_thread_fence(std::memory_order_seq_cst);  // what is new, then the look at it
    if (asleep_.load(std::memory_order_relaxed) != 0 && asleep_.exchange(0) != 0) {
        ::syscall(SYS_futex, &asleep_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
}

bool EndpointThread::drive(Entry& entry, Nanos now) {
    try {
        entry.endpoint->progress(now);
    } catch (...) {  // memory: NCCL's own call meets the same and reports it
    }
    const std::uint64_t moved = entry.endpoint->moved();
    const bool news = moved != entry.moved;
    entry.moved = moved;
    return news;
}

void EndpointThread::announce_sleep() {
    asleep_.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

void EndpointThread::sleep(Nanos time) {
    const timespec limit{0, static_cast<long>(time)};
    ::syscall(SYS_futex, &asleep_, FUTEX_WAIT_PRIVATE, 1, &limit, nullptr, 0);
}

// The thread keeps the list while it goes through it: who wants it says so first.
std::unique_lock<std::mutex> EndpointThread::list() {
    waiting_.fetch_add(1);
    std::unique_lock lock(mutex_);
    waiting_.fetch_sub(1);
    return lock;
}

bool EndpointThread::start() {
    auto argument = std::make_unique<Start>(Start{this, generation_});
    const int error = start_thread(name_, kStackBytes, main, argument.get());
    if (error != 0) {
        DEFT_WARN_ONCE("no thread %s could be started (%s): connections go on only when NCCL calls",
                       name_, std::strerror(error));
        return false;
    }
    (void)argument.release();
    return true;
}

void* EndpointThread::main(void* argument) {
    const std::unique_ptr<Start> start(static_cast<Start*>(argument));
    start->thread->run(start->generation);
    return nullptr;
}

void let_go(Endpoint& endpoint) {
    if (endpoint.thread != nullptr) {
        endpoint.thread->remove(endpoint);
    }
}

}  // namespace deft::net
