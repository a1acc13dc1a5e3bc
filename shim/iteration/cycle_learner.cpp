// SPDX-License-Identifier: Apache-2.0
#include "shim/iteration/cycle_learner.h"

#include <algorithm>

namespace deft {

CycleLearner::CycleLearner(std::size_t max_length)
    : max_length_(std::max<std::size_t>(max_length, 1)),
      recent_(max_length_),
      small_(max_length_),
      buffers_(max_length_),
      runs_(max_length_ + 1) {}

// The key fed `distance` calls before the latest; 0 is the latest.
std::uint64_t CycleLearner::key_before(std::size_t distance) const {
    return recent_[(fed_ - 1 - distance) % max_length_];
}

CycleLearner::Step CycleLearner::feed(std::uint64_t key, bool small, std::uint64_t buffer) {
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

void CycleLearner::turn(std::size_t position) {
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
// sequence, and not equal calls of one iteration: those do not share a buffer.
bool CycleLearner::is_repetition(std::size_t length) const {
    std::vector<std::uint64_t> keys;
    std::vector<std::uint64_t> buffers;
    for (std::size_t i = 0; i < length; ++i) {
        if (small_[(fed_ - 1 - i) % max_length_] == 0) {
            keys.push_back(key_before(i));
            buffers.push_back(buffers_[(fed_ - 1 - i) % max_length_]);
        }
    }
    if (keys.size() == length) {
        return false;  // then the shorter sequence is itself a cycle, and was looked at first
    }
    std::sort(buffers.begin(), buffers.end());
    if (std::adjacent_find(buffers.begin(), buffers.end()) == buffers.end()) {
        return false;
    }
    for (std::size_t k = 1; k * kEpoch <= keys.size(); ++k) {
        if (keys.size() % k == 0 &&
            std::equal(keys.begin() + static_cast<std::ptrdiff_t>(k), keys.end(), keys.begin())) {
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
