// SPDX-License-Identifier: Apache-2.0
#include "shim/learning/cycle_learner.h"

#include <algorithm>
#include <utility>

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
        i -= i < size ? 0 : size;
        return calls[i] == calls[i < k ? i + size - k : i - k];
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
      recent_(2 * max_length_),
      extents_(2 * max_length_),
      runs_(max_length_ + 1),
      epoch_until_(max_length_ + 1) {
    due_.reserve(max_length_);
}

void CycleLearner::append(std::uint64_t key, const Extent& extent) {
    if (held_ == recent_.size()) {
        compare_waiting();
        const auto kept = static_cast<std::ptrdiff_t>(held_ - max_length_);
        std::copy(recent_.begin() + kept, recent_.end(), recent_.begin());
        std::copy(extents_.begin() + kept, extents_.end(), extents_.begin());
        held_ = max_length_;
    }
    recent_[held_] = key;
    extents_[held_] = extent;
    ++held_;
    ++waiting_;
    ++fed_;
}

// Calls in a row, up to the latest, that equal the one `length` before.
std::uint64_t CycleLearner::run_of(std::size_t length) const {
    return runs_[length].last == fed_ ? runs_[length].calls : 0;
}

// The latest `calls` equal those `length` before, and so do the ones of a run up to call `before`.
void CycleLearner::extend(std::size_t length, std::uint64_t calls, std::uint64_t before) {
    Run& run = runs_[length];
    run.calls = calls + (run.last == before ? run.calls : 0);
    run.last = fed_;
    if (run.calls >= (kRepeats - 1) * length) {
        due_.push_back(length);
    }
}

// Brings runs_ up to the latest call. Runs of longer periods go on counting while a shorter one is
// in force: a stretch of equal buckets looks like a cycle of one until the whole iteration has been
// seen often enough.
void CycleLearner::compare_waiting() {
    const std::size_t waiting = std::exchange(waiting_, 0);
    if (waiting == 0) {
        return;
    }
    ++work_.comparisons;
    const std::uint64_t before = fed_ - waiting;
    const std::size_t reach = std::min(held_ - 1, max_length_);
    const std::uint64_t* const latest = recent_.data() + held_ - 1;
    const std::uint64_t key = *latest;
    due_.clear();
    const std::size_t cycle = stable() ? cycles_[current_].size() : max_length_;
    std::size_t multiple = 2 * cycle;
    for (std::size_t k = 1; k <= reach; ++k) {
        const bool repeats_cycle = k == multiple;
        multiple += repeats_cycle ? cycle : 0;
        if (*(latest - k) != key) {
            continue;
        }
        const std::size_t comparable = std::min(waiting, held_ - k);
        // So far back all calls are the cycle's.
        const bool all = repeats_cycle && waiting + k <= run_of(cycle) + cycle;
        std::size_t same = all ? comparable : 1;
        while (same < comparable && *(latest - same) == *(latest - same - k)) {
            ++same;
        }
        extend(k, same, same == comparable ? before : fed_);
    }
}

CycleLearner::Step CycleLearner::feed(std::uint64_t key, bool small, std::uint64_t buffer,
                                      std::uint64_t sums) {
    append(key, {buffer, sums, small});
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
    compare_waiting();
    const std::size_t length = shortest_period();
    if (length != 0) {
        current_ = adopt(length, run_of(length), position_);
        step.locked = true;
        step.cycle = current_;
        step.position = position_;
        step.repeats = (run_of(length) + length) / length;
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
    fed_ = held_ = waiting_ = 0;
    std::fill(runs_.begin(), runs_.end(), Run{});
    std::fill(epoch_until_.begin(), epoch_until_.end(), 0);
    current_ = kNone;
}

// The smallest length whose last kRepeats repeats were equal; 0 if there is none.
std::size_t CycleLearner::shortest_period() {
    std::size_t epoch = 0;
    for (const std::size_t length : due_) {
        // Several epochs are no iteration either.
        const bool epochs = epoch != 0 && length % epoch == 0 && length <= run_of(epoch) + epoch;
        if (!epochs && !is_epoch(length)) {
            return length;
        }
        epoch = epoch == 0 ? length : epoch;
    }
    return 0;
}

// As is_repetition(), which is true of the same sequence in any rotation.
bool CycleLearner::is_epoch(std::size_t length) {
    if (fed_ < epoch_until_[length]) {
        return true;
    }
    if (!is_repetition(length)) {
        return false;
    }
    epoch_until_[length] = fed_ + length / 4;
    return true;
}

// True if the latest `length` calls, the small ones left out, are kEpoch or more repeats of one
// sequence, or mostly such gradients, and not equal calls of one iteration: those do not share a
// buffer.
bool CycleLearner::is_repetition(std::size_t length) {
    ++work_.looks;
    std::vector<LargeCall> calls;
    std::vector<std::uint64_t> buffers;
    for (std::size_t at = held_; at-- > held_ - length;) {
        const Extent& extent = extents_[at];
        if (!extent.small) {
            calls.push_back({recent_[at], extent.buffer, extent.sums});
            buffers.push_back(extent.buffer);
        }
    }
    std::sort(buffers.begin(), buffers.end());
    if (std::adjacent_find(buffers.begin(), buffers.end()) == buffers.end()) {
        return false;
    }
    const auto same_key = [](const LargeCall& a, const LargeCall& b) { return a.key == b.key; };
    // Without a small call the shorter sequence is itself a cycle, and was looked at first.
    for (std::size_t k = 1; calls.size() < length && k * kEpoch <= calls.size(); ++k) {
        if (calls.size() % k == 0 && std::equal(calls.begin() + static_cast<std::ptrdiff_t>(k),
                                                calls.end(), calls.begin(), same_key)) {
            return true;
        }
    }
    return mostly_repeats(calls, kEpoch);
}

// Finds the latest `length` keys among the known cycles, in any rotation, or makes a new one that
// begins where the repetition began. Sets the position of the latest call.
std::size_t CycleLearner::adopt(std::size_t length, std::uint64_t run, std::size_t& position) {
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
