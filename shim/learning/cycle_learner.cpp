// SPDX-License-Identifier: Apache-2.0
#include "shim/learning/cycle_learner.h"

#include <algorithm>

namespace deft {
namespace {

struct LargeCall {
    std::uint64_t key = 0;
    std::uint64_t buffer = 0;
    std::uint64_t sums = 0;

    bool operator==(const LargeCall&) const = default;
};

// How many of the calls, a ring, stand in a row of `repeats` or more repeats of a sequence of `k`.
std::size_t in_repeats(const std::vector<LargeCall>& calls, std::size_t k, std::size_t repeats) {
    const std::size_t size = calls.size();
    const auto repeated = [&](std::size_t i) {
        return calls[i % size] == calls[(i + size - k) % size];
    };
    std::size_t first = 0;  // begins no run in its middle
    while (first < size && repeated(first)) {
        ++first;
    }
    if (first == size) {
        return size;
    }
    std::size_t found = 0;
    std::size_t run = 0;
    for (std::size_t i = first + 1; i <= first + size; ++i) {
        if (repeated(i)) {
            ++run;
            continue;
        }
        found += run + k >= k * repeats ? run + k : 0;
        run = 0;
    }
    return found;
}

// All are sums over one communicator, and half of them or more are gradients of `repeats` or more
// iterations in a row, into the same buffers.
bool mostly_repeats(const std::vector<LargeCall>& calls, std::size_t repeats) {
    const auto other = [&calls](const LargeCall& call) { return call.sums != calls[0].sums; };
    if (calls.empty() || calls[0].sums == 0 || std::any_of(calls.begin(), calls.end(), other)) {
        return false;
    }
    for (std::size_t k = 1; k * repeats < calls.size(); ++k) {
        if (2 * in_repeats(calls, k, repeats) >= calls.size()) {
            return true;
        }
    }
    return false;
}

}  // namespace

CycleLearner::CycleLearner(std::size_t max_length)
    : max_length_(std::max<std::size_t>(max_length, 1)),
      recent_(max_length_),
      small_(max_length_),
      buffers_(max_length_),
      sums_(max_length_),
      runs_(max_length_ + 1) {}

// The key fed `distance` calls before the latest; 0 is the latest.
std::uint64_t CycleLearner::key_before(std::size_t distance) const {
    return recent_[(fed_ - 1 - distance) % max_length_];
}

CycleLearner::Step CycleLearner::feed(std::uint64_t key, bool small, std::uint64_t buffer,
                                      std::uint64_t sums) {
    // Runs of longer periods go on counting while a shorter one is in force: a stretch of equal
    // buckets looks like a cycle of one until the whole iteration has been seen often enough.
    const std::size_t reach = std::min<std::uint64_t>(fed_, max_length_);
    for (std::size_t k = 1; k <= reach; ++k) {
        const bool same = recent_[(fed_ - k) % max_length_] == key;
        runs_[k] = same ? runs_[k] + 1 : 0;
    }
    recent_[fed_ % max_length_] = key;
    small_[fed_ % max_length_] = small ? 1 : 0;
    buffers_[fed_ % max_length_] = buffer;
    sums_[fed_ % max_length_] = sums;
    ++fed_;

    Step step;
    if (current_ != kNone) {
        const std::vector<std::uint64_t>& cycle = cycles_[current_];
        const std::size_t next = (position_ + 1) % cycle.size();
        if (cycle[next] == key) {
            position_ = next;
            step.cycle = current_;
            step.position = position_;
            return step;
        }
        step.broken = true;
        current_ = kNone;
    }
    const std::size_t length = shortest_period();
    if (length != 0) {
        current_ = adopt(length, runs_[length], position_);
        step.locked = true;
        step.cycle = current_;
        step.position = position_;
        step.repeats = (runs_[length] + length) / length;
    }
    return step;
}

void CycleLearner::rotate(std::size_t position) {
    if (current_ == kNone || position >= cycles_[current_].size()) {
        return;
    }
    std::vector<std::uint64_t>& cycle = cycles_[current_];
    std::rotate(cycle.begin(), cycle.begin() + static_cast<std::ptrdiff_t>(position), cycle.end());
    position_ = (position_ + cycle.size() - position) % cycle.size();
}

void CycleLearner::restart() {
    fed_ = 0;
    std::fill(runs_.begin(), runs_.end(), 0);
    current_ = kNone;
}

// The smallest length whose last kRepeats repeats were equal; 0 if there is none.
std::size_t CycleLearner::shortest_period() const {
    const std::size_t reach = std::min<std::uint64_t>(fed_ - 1, max_length_);
    for (std::size_t k = 1; k <= reach; ++k) {
        if (runs_[k] >= (kRepeats - 1) * k && !is_repetition(k)) {
            return k;
        }
    }
    return 0;
}

// True if the latest `length` calls, the small ones left out, are kEpoch or more repeats of one
// sequence, or mostly such gradients, and not equal calls of one iteration: those do not share a
// buffer.
bool CycleLearner::is_repetition(std::size_t length) const {
    std::vector<LargeCall> calls;
    std::vector<std::uint64_t> buffers;
    for (std::size_t i = 0; i < length; ++i) {
        const std::size_t at = (fed_ - 1 - i) % max_length_;
        if (small_[at] == 0) {
            calls.push_back({recent_[at], buffers_[at], sums_[at]});
            buffers.push_back(buffers_[at]);
        }
    }
    std::sort(buffers.begin(), buffers.end());
    if (std::adjacent_find(buffers.begin(), buffers.end()) == buffers.end()) {
        return false;
    }
    if (mostly_repeats(calls, kEpoch)) {
        return true;
    }
    if (calls.size() == length) {
        return false;  // then the shorter sequence is itself a cycle, and was looked at first
    }
    const auto same_key = [](const LargeCall& a, const LargeCall& b) { return a.key == b.key; };
    for (std::size_t k = 1; k * kEpoch <= calls.size(); ++k) {
        if (calls.size() % k == 0 && std::equal(calls.begin() + static_cast<std::ptrdiff_t>(k),
                                                calls.end(), calls.begin(), same_key)) {
            return true;
        }
    }
    return false;
}

// Finds the latest `length` keys among the known cycles, in any rotation, or makes a new one that
// begins where the repetition began. Sets the position of the latest call.
std::size_t CycleLearner::adopt(std::size_t length, std::size_t run, std::size_t& position) {
    std::vector<std::uint64_t> keys(length);
    position = (run + length - 1) % length;
    for (std::size_t i = 0; i < length; ++i) {
        keys[(position + length - i) % length] = key_before(i);
    }
    for (std::size_t known = 0; known < cycles_.size(); ++known) {
        std::vector<std::uint64_t>& cycle = cycles_[known];
        if (cycle.size() != length) {
            continue;
        }
        for (std::size_t shift = 0; shift < length; ++shift) {
            bool equal = true;
            for (std::size_t i = 0; equal && i < length; ++i) {
                equal = cycle[(i + shift) % length] == keys[i];
            }
            if (equal) {
                position = (position + shift) % length;
                return known;
            }
        }
    }
    if (cycles_.size() < kMaxKnown) {
        cycles_.push_back(std::move(keys));
        return cycles_.size() - 1;
    }
    const std::size_t place = oldest_++ % kMaxKnown;
    cycles_[place] = std::move(keys);
    return place;
}

}  // namespace deft
