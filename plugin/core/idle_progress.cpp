// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/idle_progress.h"

#include <algorithm>

#include "plugin/core/progress_thread.h"

namespace deft::net {
namespace {

constexpr Nanos kInterval = 250 * kMillisecond;
// A peer that has lost a path with the last of a job's messages asks how much came: it waits for
// two of these at most.
constexpr Nanos kFenceInterval = 25 * kMillisecond;
// Where something moved there may be more, of this or of the same in answer to it: looked at again
// so soon, then less and less often.
constexpr Nanos kSoon = kMillisecond;

class IdleProgress final : public ProgressThread {
public:
    IdleProgress() : ProgressThread("deft-care") {}

private:
    void run(std::uint64_t generation) override {
        Nanos all_at = steady_now() + kInterval;
        Nanos nap = kInterval;
        for (;;) {
            announce_sleep();
            sleep(std::clamp<Nanos>(all_at - steady_now(), 0, nap));
            (void)end_sleep();
            const Nanos now = steady_now();
            const bool all = now >= all_at;
            bool moved = false;
            Nanos longest = kInterval;
            const bool goes_on = go_round(generation, [&](Entry& entry) {
                const bool fences = entry.end->fences();
                longest = fences ? kFenceInterval : longest;
                if (all || entry.stirs || fences) {
                    const bool moves = visit(entry);
                    entry.stirs = moves || (entry.stirs && !all);
                    if (moves) {
                        moved = true;
                    }
                }
            });
            if (!goes_on) {
                return;
            }
            while (take_out() != nullptr) {  // closes it
            }
            all_at = all ? now + kInterval : all_at;
            nap = moved ? kSoon : std::min(2 * nap, longest);
        }
    }

    // NCCL's bytes are never touched: a request it holds it asks for itself, and once it gives up
    // on a communicator it frees the buffers before it closes the connection.
    static bool visit(Entry& entry) {
        if (!entry.end->lock.left_alone() || !entry.end->lock.try_lock_spare()) {
            return false;
        }
        const bool moved = !entry.end->held() && drive(entry, steady_now());
        entry.end->lock.unlock_spare();
        return moved;
    }
};

IdleProgress& idle_progress() {
    static auto& one = *new IdleProgress;
    return one;
}

}  // namespace

bool progress_when_idle(ConnectionEnd& end) {
    return idle_progress().add(end);
}

bool see_off(std::unique_ptr<ConnectionEnd>& end) {
    return idle_progress().adopt(end);
}

}  // namespace deft::net
