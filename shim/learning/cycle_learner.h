// SPDX-License-Identifier: Apache-2.0
// Learns the job's iteration: the sequence of calls that repeats. Pure: depends on nothing but the
// keys it is fed, and on which of the calls share a buffer, so that ranks that make the same calls
// learn the same cycle at the same call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace deft {

// A key stands for everything that must be equal in two calls of the same bucket (communicator,
// function, count, type, op, root, in place). Addresses are not part of it: allocators reuse them.
//
// A sequence of length k is a cycle once it has been seen kRepeats times in a row; the shortest
// such k wins. The first call that differs ends it, and learning starts over; a cycle that comes
// back after an interruption (an evaluation, a barrier) has to be seen as often again, but keeps
// its identity and the place where it begins.
//
// Many repeats of one sequence and a small call behind them are an epoch and not an iteration,
// unless each of the calls has a buffer of its own: then they are one iteration's equal buckets.
// So are many repeats of gradients and a large sum of an evaluation over their communicator, if the
// repeats return to their buffers: else plans would take an epoch for an iteration.
class CycleLearner {
public:
    static constexpr std::size_t kRepeats = 3;
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

    // Longest cycle that can be found. While none is in force feed() takes time in proportion to
    // it, half a microsecond; else some ten nanoseconds, however long the cycle is.
    explicit CycleLearner(std::size_t max_length = 1024);

    struct Step {
        bool broken = false;        // this call ended the cycle that was in force
        bool locked = false;        // with this call a cycle came into force
        std::size_t cycle = kNone;  // the cycle in force, an index into cycles(); kNone: learning
        std::size_t position = kNone;  // this call's place in it, 0..length-1
        // When locked: whole repeats seen so far.
        std::size_t repeats = 0;
    };

    // Takes the next call. `small` calls carry no data to speak of. `buffer`: where its result
    // goes. `sums`: the communicator of what may be a gradient's all-reduce, 0 of anything else.
    // Allocates only when a cycle may have been found.
    Step feed(std::uint64_t key, bool small = false, std::uint64_t buffer = 0,
              std::uint64_t sums = 0);

    // Makes the cycle in force begin at this place of it, from now on.
    void rotate(std::size_t position);

    // Forgets the recent calls (some were missed); known cycles stay known.
    void restart();

    // What feeding has cost so far, for whoever holds it to a bound.
    struct Work {
        std::uint64_t comparisons = 0;  // of a call, or of many that waited, with all before it
        std::uint64_t looks = 0;        // into a sequence that may be an epoch
    };
    const Work& work() const { return work_; }

    std::size_t max_length() const { return max_length_; }
    bool stable() const { return current_ != kNone; }
    std::size_t current() const { return current_; }
    // All cycles found so far, each as the keys of one iteration from its beginning.
    std::span<const std::vector<std::uint64_t>> cycles() const { return cycles_; }

private:
    static constexpr std::size_t kEpoch = 4;  // so many iterations in a sequence make it an epoch
    static constexpr std::size_t kMaxKnown = 64;  // beyond it the oldest is overwritten

    // What a key does not tell of its call.
    struct Extent {
        std::uint64_t buffer = 0;
        std::uint64_t sums = 0;
        bool small = false;
    };

    // So many calls in a row, the latest of them the `last`th.
    struct Run {
        std::uint64_t calls = 0;
        std::uint64_t last = 0;
    };

    std::size_t max_length_;
    // The latest calls, oldest first: max_length_ or more once there have been as many, and with
    // them those that have not been compared yet.
    std::vector<std::uint64_t> recent_;
    std::vector<Extent> extents_;
    std::size_t held_ = 0;
    // While a cycle is in force nobody asks for runs: calls wait, and are compared many at a time.
    // A job may make ten thousands of calls a second, and one comparison reads max_length_ keys.
    std::size_t waiting_ = 0;
    std::vector<Run> runs_;         // runs_[k]: of calls that equal the one k before
    std::vector<std::size_t> due_;  // of which lengths there are kRepeats now, ascending
    // Up to which call a sequence of that length counts as an epoch without another look: a look
    // may take a millisecond.
    std::vector<std::uint64_t> epoch_until_;
    std::uint64_t fed_ = 0;
    std::vector<std::vector<std::uint64_t>> cycles_;
    std::size_t oldest_ = 0;
    std::size_t current_ = kNone;
    std::size_t position_ = 0;
    Work work_;

    void append(std::uint64_t key, const Extent& extent);
    void compare_waiting();
    std::uint64_t key_before(std::size_t distance) const { return recent_[held_ - 1 - distance]; }
    std::uint64_t run_of(std::size_t length) const;
    void extend(std::size_t length, std::uint64_t calls, std::uint64_t before);
    std::size_t shortest_period();
    bool is_epoch(std::size_t length);
    bool is_repetition(std::size_t length);
    std::size_t adopt(std::size_t length, std::uint64_t run, std::size_t& position);
};

}  // namespace deft
