// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/progress_thread.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <iterator>
#include <memory>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/thread.h"

namespace deft::net {
namespace {

constexpr std::size_t kStackBytes = 512 * 1024;

}  // namespace

bool ProgressThread::add(ConnectionEnd& end) {
    Entry entry{&end, end.moved()};
    if (!enter(entry)) {
        return false;
    }
    end.thread = this;
    return true;
}

bool ProgressThread::adopt(std::unique_ptr<ConnectionEnd>& end) {
    ConnectionEnd* const raw = end.get();
    Entry entry{raw, raw->moved()};
    entry.own = std::move(end);
    const bool entered = enter(entry);
    end = std::move(entry.own);
    return entered;
}

// Takes the entry if it returns true.
bool ProgressThread::enter(Entry& entry) {
    ForkGuard::process().arm();
    if (ForkGuard::process().in_child()) {
        return false;
    }
    const MutexLock lock(gate_);
    new_.push_back(std::move(entry));
    runs_ = runs_ || start();
    if (!runs_) {
        entry = std::move(new_.back());
        new_.pop_back();
    }
    return runs_;
}

// At the begin of the thread's round. False if its time is over.
bool ProgressThread::take_in(std::uint64_t generation) {
    const MutexLock lock(gate_);
    if (generation != generation_) {
        return false;
    }
    std::move(new_.begin(), new_.end(), std::back_inserter(entries_));
    new_.clear();
    return true;
}

// After one has gone. True if the thread ends, as there are no others.
bool ProgressThread::end_if_last() {
    const MutexLock lock(gate_);
    if (!entries_.empty() || !new_.empty()) {
        return false;
    }
    ++generation_;
    runs_ = false;
    return true;
}

std::unique_ptr<ConnectionEnd> ProgressThread::take_out() {
    const ListLock lock(*this);
    const auto found = std::find_if(entries_.begin(), entries_.end(), [](const Entry& entry) {
        return entry.own != nullptr && entry.own->over();
    });
    if (found == entries_.end()) {
        return nullptr;
    }
    std::unique_ptr<ConnectionEnd> own = std::move(found->own);
    entries_.erase(found);
    (void)end_if_last();
    return own;
}

void ProgressThread::remove(ConnectionEnd& end) {
    end.thread = nullptr;
    end.helper = nullptr;
    if (ForkGuard::process().in_child()) {
        return;  // nobody else has it, and the list may be locked for ever
    }
    bool last = false;
    {
        const auto gone = [&](const Entry& entry) { return entry.end == &end; };
        const ListLock lock(*this);
        std::erase_if(entries_, gone);
        {
            const MutexLock gate(gate_);
            std::erase_if(new_, gone);
        }
        last = end_if_last();
    }
    if (last) {
        wake();
    }
}

void ProgressThread::wake() {
    std::atomic_thread_fence(std::memory_order_seq_cst);  // what is new, then the look at it
    if (asleep_.load(std::memory_order_relaxed) != 0 && asleep_.exchange(0) != 0) {
        ::syscall(SYS_futex, &asleep_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
}

bool ProgressThread::drive(Entry& entry, Nanos now) {
    try {
        entry.end->progress(now);
    } catch (...) {  // memory: NCCL's own call meets the same and reports it
    }
    const std::uint64_t moved = entry.end->moved();
    const bool news = moved != entry.moved;
    entry.moved = moved;
    return news;
}

void ProgressThread::announce_sleep() {
    asleep_.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

void ProgressThread::sleep(Nanos time) {
    const timespec limit{0, static_cast<long>(time)};
    ::syscall(SYS_futex, &asleep_, FUTEX_WAIT_PRIVATE, 1, &limit, nullptr, 0);
}

ProgressThread::ListLock::ListLock(ProgressThread& thread) : thread_(thread) {
    thread.waiting_.fetch_add(1);
    thread.mutex_.lock();
    thread.waiting_.fetch_sub(1);
}

bool ProgressThread::start() {
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

void* ProgressThread::main(void* argument) {
    const std::unique_ptr<Start> start(static_cast<Start*>(argument));
    start->thread->run(start->generation);
    return nullptr;
}

void stop_progress(ConnectionEnd& end) {
    if (end.thread != nullptr) {
        end.thread->remove(end);
    }
}

}  // namespace deft::net
