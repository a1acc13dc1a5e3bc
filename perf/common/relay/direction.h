// SPDX-License-Identifier: Apache-2.0
// One direction of a relayed link: takes frames, decides what happens to each, and gives them out
// when they are due. The n-th frame's fate depends on the seed, n and the impairments only. Knows
// no clock: the caller says what time it is. One thread.
#pragma once

#include <cstdint>
#include <limits>
#include <queue>
#include <unordered_set>
#include <vector>

#include "perf/common/relay/impairments.h"
#include "perf/common/relay/packet.h"

namespace relay {

struct Counters {
    std::uint64_t received = 0;  // frames taken
    std::uint64_t forwarded = 0;
    std::uint64_t forwarded_bytes = 0;
    std::uint64_t lost = 0;  // by loss
    std::uint64_t acknowledgements_lost = 0;
    std::uint64_t duplicated = 0;
    std::uint64_t held_back = 0;  // by reorder
    std::uint64_t bit_errors = 0;
    std::uint64_t silent_bit_errors = 0;
    std::uint64_t resets = 0;
    std::uint64_t forgotten = 0;  // frames of forgotten connections
    std::uint64_t in_hole = 0;
    std::uint64_t in_black_hole = 0;
    std::uint64_t overflowed = 0;  // the queue before the rate was full
};

class Direction {
public:
    static constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

    explicit Direction(std::uint64_t seed) : seed_(seed) {}

    Impairments impairments;

    void offer(Frame frame, Nanoseconds now);
    // The earliest frame that is due at `now`; false if there is none.
    bool take(Nanoseconds now, Frame& frame);
    Nanoseconds next() const { return waiting_.empty() ? kNever : waiting_.top().due; }
    const Counters& counters() const { return counters_; }

private:
    struct Waiting {
        Nanoseconds due;
        std::uint64_t order;
        // priority_queue hands out const elements only, and a frame is moved out just before it
        // goes.
        mutable Frame frame;
        bool operator<(const Waiting& other) const {
            return due != other.due ? due > other.due : order > other.order;
        }
    };

    double share(std::uint64_t salt) const;  // of the frame at hand, 0 to 1
    std::uint64_t random(std::uint64_t salt) const;
    bool vanishes(const Layout& layout);
    bool forgotten(const Layout& layout);
    void damage(Frame& frame, const Layout& layout);
    void enqueue(Frame frame, Nanoseconds now, bool hold_back);

    const std::uint64_t seed_;
    std::uint64_t index_ = 0;  // of the frame at hand
    std::uint64_t order_ = 0;
    Nanoseconds free_at_ = 0;                  // when the rate has room again
    Nanoseconds last_due_ = 0;                 // of what was not held back: jitter keeps the order
    std::unordered_set<std::uint64_t> known_;  // TCP connections seen
    std::unordered_set<std::uint64_t> forgotten_;  // those seen before `forget` was set
    bool forgetting_ = false;
    std::priority_queue<Waiting> waiting_;
    Counters counters_;
};

}  // namespace relay
