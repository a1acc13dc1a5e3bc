// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/io_threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <ctime>
#include <memory>
#include <mutex>
#include <vector>

#include "topology/base/log.h"

namespace deft::net {
namespace {

constexpr std::size_t kMaxHelpers = 16;
constexpr Nanos kSpin = 100 * kMicrosecond;  // without news while something is on its way
constexpr Nanos kFirstNap = 50 * kMicrosecond;
constexpr Nanos kLongestNap = kMillisecond;
// Nothing on its way. A peer may still want to know what has come, if it lost the path that said
// so.
constexpr Nanos kIdleNap = 100 * kMillisecond;
// For so long an endpoint is left to NCCL's thread, which wants it but may not come again.
constexpr Nanos kPolite = 50 * kMicrosecond;

}  // namespace

class IoHelper {
public:
    bool add(Endpoint& endpoint) {
        const std::unique_lock lock = list();
        endpoints_.push_back({&endpoint});
        if (endpoints_.size() == 1 && !start()) {
            endpoints_.pop_back();
            return false;
        }
        endpoint.helper = this;
        return true;
    }

    void remove(Endpoint& endpoint) {
        wake();
        const std::unique_lock lock = list();
        std::erase_if(endpoints_, [&](const Entry& entry) { return entry.endpoint == &endpoint; });
        endpoint.helper = nullptr;
        generation_ += endpoints_.empty() ? 1 : 0;  // the thread ends
    }

    void wake() {
        std::atomic_thread_fence(std::memory_order_seq_cst);  // what is new, then the look at it
        if (asleep_.load(std::memory_order_relaxed) != 0 && asleep_.exchange(0) != 0) {
            ::syscall(SYS_futex, &asleep_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
        }
    }

private:
    struct Entry {
        Endpoint* endpoint;
        std::uint64_t moved = 0;
        Nanos wanted_since = 0;
    };
    struct Start {
        IoHelper* helper;
        std::uint64_t generation;
    };
    struct Round {
        bool moved = false;
        bool busy = false;
        bool over = false;
    };

    // The helper keeps the list while it goes through it: who wants it says so first.
    std::unique_lock<std::mutex> list() {
        waiting_.fetch_add(1);
        std::unique_lock lock(mutex_);
        waiting_.fetch_sub(1);
        return lock;
    }

    bool start() {
        sigset_t all;
        sigset_t before;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        pthread_t thread;
        auto argument = std::make_unique<Start>(Start{this, generation_});
        const int error = ::pthread_create(&thread, nullptr, main, argument.get());
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        if (error != 0) {
            DEFT_WARN_ONCE("DEFT_IO_THREADS: no thread could be started (error %d)", error);
            return false;
        }
        (void)argument.release();
        ::pthread_setname_np(thread, "deft-io");
        ::pthread_detach(thread);
        return true;
    }

    static void* main(void* argument) {
        const std::unique_ptr<Start> start(static_cast<Start*>(argument));
        start->helper->run(start->generation);
        return nullptr;
    }

    void run(std::uint64_t generation) {
        Nanos news = steady_now();
        Nanos nap = kFirstNap;
        for (;;) {
            Round round = go_round(generation);
            const Nanos now = steady_now();
            if (round.over) {
                return;
            }
            if (round.moved) {
                news = now;
                nap = kFirstNap;
                continue;
            }
            if (round.busy && now - news < kSpin) {
                ::sched_yield();
                continue;
            }
            // Announced first, so that whoever brings something new either wakes this thread or is
            // seen in one more round.
            asleep_.store(1);
            std::atomic_thread_fence(std::memory_order_seq_cst);
            round = go_round(generation);
            if (round.over) {
                return;
            }
            if (!round.moved) {
                sleep(round.busy ? nap : kIdleNap);
                nap = std::min(2 * nap, kLongestNap);
            }
            if (asleep_.exchange(0) == 0) {  // woken
                news = steady_now();
                nap = kFirstNap;
            }
        }
    }

    Round go_round(std::uint64_t generation) {
        while (waiting_.load() != 0) {
            ::sched_yield();
        }
        Round round;
        const std::lock_guard lock(mutex_);
        if (generation != generation_) {
            round.over = true;
            return round;
        }
        for (Entry& entry : endpoints_) {
            Endpoint& endpoint = *entry.endpoint;
            const Nanos now = steady_now();
            if (endpoint.turn.wanted()) {
                entry.wanted_since = entry.wanted_since == 0 ? now : entry.wanted_since;
                if (now - entry.wanted_since < kPolite) {
                    round.busy = true;
                    continue;
                }
                endpoint.turn.forget();
            }
            entry.wanted_since = 0;
            if (!endpoint.turn.take_spare()) {
                round.busy = true;
                continue;
            }
            try {
                endpoint.progress(now);
            } catch (...) {  // memory: NCCL's own call meets the same and reports it
            }
            const std::uint64_t moved = endpoint.moved();
            round.moved = round.moved || moved != entry.moved;
            round.busy = round.busy || endpoint.busy();
            entry.moved = moved;
            endpoint.turn.give();
        }
        return round;
    }

    void sleep(Nanos time) {
        const timespec limit{0, static_cast<long>(time)};
        ::syscall(SYS_futex, &asleep_, FUTEX_WAIT_PRIVATE, 1, &limit, nullptr, 0);
    }

    std::mutex mutex_;
    std::vector<Entry> endpoints_;  // under mutex_; a thread runs while there are any
    std::uint64_t generation_ = 0;  // under mutex_; of that thread
    std::atomic<int> waiting_{0};   // for mutex_, of others than the helper
    std::atomic<std::uint32_t> asleep_{0};
};

namespace {

IoHelper& helper(std::size_t index) {
    // Never destroyed: a helper may be inside while the process exits.
    static auto& helpers = *new std::array<IoHelper, kMaxHelpers>;
    return helpers[index];
}

}  // namespace

bool help(Endpoint& endpoint, std::size_t threads) {
    static std::atomic<std::size_t> next{0};
    return helper(next.fetch_add(1) % std::min(threads, kMaxHelpers)).add(endpoint);
}

void unhelp(Endpoint& endpoint) {
    if (endpoint.helper != nullptr) {
        endpoint.helper->remove(endpoint);
    }
}

void wake(IoHelper& helper) {
    helper.wake();
}

}  // namespace deft::net
