// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/io_threads.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "plugin/core/progress_thread.h"

namespace deft::net {
namespace {

constexpr std::size_t kMaxHelpers = 16;
constexpr Nanos kSpin = 100 * kMicrosecond;  // without news while something is on its way
constexpr Nanos kFirstNap = 50 * kMicrosecond;
constexpr Nanos kLongestNap = kMillisecond;
// Nothing on its way. A peer may still want to know what has come, if it lost the path that said
// so.
constexpr Nanos kIdleNap = 100 * kMillisecond;
// For so long an end is left to NCCL's thread, which wants it but may not come again.
constexpr Nanos kPolite = 50 * kMicrosecond;

}  // namespace

class IoHelper final : public ProgressThread {
public:
    IoHelper() : ProgressThread("deft-io") {}

private:
    struct Round {
        bool moved = false;
        bool busy = false;
        bool over = false;
    };

    void run(std::uint64_t generation) override {
        Nanos news = steady_now();
        Nanos nap = kFirstNap;
        for (;;) {
            Round round = look(generation);
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
            announce_sleep();
            round = look(generation);
            if (round.over) {
                return;
            }
            if (!round.moved) {
                sleep(round.busy ? nap : kIdleNap);
                nap = std::min(2 * nap, kLongestNap);
            }
            if (end_sleep()) {
                news = steady_now();
                nap = kFirstNap;
            }
        }
    }

    Round look(std::uint64_t generation) {
        Round round;
        round.over = !go_round(generation, [&](Entry& entry) { visit(entry, round); });
        return round;
    }

    static void visit(Entry& entry, Round& round) {
        const Nanos now = steady_now();
        if (entry.end->lock.wanted()) {
            entry.wanted_since = entry.wanted_since == 0 ? now : entry.wanted_since;
            if (now - entry.wanted_since < kPolite) {
                round.busy = true;
                return;
            }
            entry.end->lock.forget();
        }
        entry.wanted_since = 0;
        if (!entry.end->lock.try_lock_spare()) {
            round.busy = true;
            return;
        }
        round.moved = drive(entry, now) || round.moved;
        if (entry.end->busy()) {
            round.busy = true;
        }
        entry.end->lock.unlock_spare();
    }
};

namespace {

IoHelper& helper(std::size_t index) {
    static auto& helpers = *new std::array<IoHelper, kMaxHelpers>;
    return helpers[index];
}

}  // namespace

bool help(ConnectionEnd& end, std::size_t threads) {
    static std::atomic<std::size_t> next{0};
    IoHelper& chosen = helper(next.fetch_add(1) % std::min(threads, kMaxHelpers));
    end.helper = chosen.add(end) ? &chosen : nullptr;
    return end.helper != nullptr;
}

void wake(IoHelper& helper) {
    helper.wake();
}

}  // namespace deft::net
