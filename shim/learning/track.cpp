// SPDX-License-Identifier: Apache-2.0
#include "shim/learning/track.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "shim/nccl/sum_mark.h"

namespace deft {
namespace {

// Calls look different with each communicator. Of those that no cycle can be made of any more, so
// many are kept at most: a job may make and drop communicators for as long as it runs.
constexpr std::size_t kIdleShapes = 4096;
// Buffers are compared over as many repeats as make a cycle. A lone gradient is the likeliest to be
// one of many: an allocator may give equal ones the same buffer now and then.
constexpr std::size_t kCompared = CycleLearner::kRepeats;
constexpr std::size_t kComparedAlone = 4;
constexpr std::size_t kBuffers = 4096;  // at least kCompared of the longest cycle
constexpr std::size_t kMostNumbered = 4096;

std::uint64_t number_key(std::uint32_t comm_serial, Series series) {
    return std::uint64_t{comm_serial} * kSeries + static_cast<std::uint64_t>(series);
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    return hash * 0xff51afd7ed558ccdu;
}

}  // namespace

std::uint64_t key_of(const CallRecord& record) {
    std::uint64_t key = mix(record.comm_serial, record.count);
    key = mix(key, static_cast<std::uint64_t>(record.function) << 16 |
                       static_cast<std::uint64_t>(record.type) << 8 |
                       (record.group != 0 ? 2u : 0u) | (record.in_place ? 1u : 0u));
    // A module's buckets keep their places; another module's are another iteration's.
    key = is_bucket(record.mark) ? mix(key, record.mark) : key;
    // A user reduction made for one call and destroyed after it (PyTorch's premul_sum) has a new
    // number each time.
    const int op = std::min<int>(record.op, DEFT_NCCL_NUM_OPS);
    return mix(key, static_cast<std::uint64_t>(static_cast<std::uint32_t>(op)) << 32 |
                        static_cast<std::uint32_t>(record.root));
}

void Track::adopt(std::size_t index) {
    if (index >= cycles_.size()) {
        cycles_.resize(index + 1);
    }
    Cycle& cycle = cycles_[index];
    const std::vector<std::uint64_t>& keys = learner_.cycles()[index];
    const bool known =
        cycle.profile != nullptr && cycle.shape.size() == keys.size() &&
        std::equal(keys.begin(), keys.end(), cycle.shape.begin(),
                   [](std::uint64_t key, const CallRecord& shape) { return key == key_of(shape); });
    if (known) {
        return;
    }
    cycle.shape.clear();
    cycle.gradients = 0;
    cycle.whole = false;
    for (const std::uint64_t key : keys) {
        cycle.shape.push_back(shapes_[key].record);
        cycle.gradients += carries_gradient(cycle.shape.back()) ? 1 : 0;
    }
    cycle.profile = std::make_unique<CallTimes>(keys.size());
}

// True if each of the latest gradients, as many as there are in a cycle, and each of those before
// them went where one of the same number before it had gone. An iteration uses a buffer once, so
// two calls with one buffer are of two iterations. Such repeats are iterations by themselves then;
// parts of an iteration would find their buffers again only where one begins, not twice in a row.
// Equal buffers may change places meanwhile.
bool Track::returns_to_buffers(std::size_t gradients) const {
    const std::size_t repeats = gradients == 1 ? kComparedAlone : kCompared;
    if (gradients == 0 || gradients_ < repeats * gradients || repeats * gradients > kBuffers) {
        return false;
    }
    std::vector<std::uint64_t> before;
    std::vector<std::uint64_t> now;
    for (std::size_t r = repeats; r > 0; --r) {
        for (std::size_t i = 0; i < gradients; ++i) {
            now.push_back(buffers_[(gradients_ - r * gradients + i) % kBuffers]);
        }
        std::sort(now.begin(), now.end());
        if (std::adjacent_find(now.begin(), now.end()) != now.end()) {
            return false;  // of two iterations, between which something else is sent
        }
        if (r < repeats && !std::includes(before.begin(), before.end(), now.begin(), now.end())) {
            return false;
        }
        before = std::exchange(now, {});
    }
    return true;
}

void Track::feed(const CallRecord& record) {
    ++calls_;
    if (carries_gradient(record)) {
        buffers_.resize(kBuffers);
        buffers_[gradients_++ % kBuffers] = record.buffer;
    }
    const std::uint64_t key = key_of(record);
    if (!learner_.stable()) {
        if (shapes_.size() >= most_shapes_) {
            forget_shapes();
        }
        shapes_.insert_or_assign(key, Known{record, calls_});
    }
    const bool sum = carries_gradient(record) && record.function == Function::AllReduce;
    const CycleLearner::Step step = learner_.feed(key, is_small(record), record.buffer,
                                                  sum ? record.comm_serial + std::uint64_t{1} : 0);
    if (step.broken) {
        ++changes_;
        gap_ = true;
        shapes_.insert_or_assign(key, Known{record, calls_});
    }
    number(record, step);
    if (step.cycle == CycleLearner::kNone) {
        forget_times(record);
        return;
    }
    count(step);
    Waiting waiting;
    waiting.call.position = step.position;
    waiting.call.issued = record.issued_ns;
    waiting.call.stream = record.stream;
    waiting.call.bytes = payload_bytes(record);
    waiting.call.group = record.group;
    waiting.call.comm = record.comm_serial;
    waiting.cycle = step.cycle;
    waiting.events = record.events;
    waiting.seen_ns = record.issued_ns;
    waiting.gap_before = gap_;
    gap_ = false;
    waiting_.push_back(waiting);
}

// A cycle is made of the latest calls, or is known already.
void Track::forget_shapes() {
    std::unordered_set<std::uint64_t> cycles;
    for (const std::vector<std::uint64_t>& keys : learner_.cycles()) {
        cycles.insert(keys.begin(), keys.end());
    }
    std::erase_if(shapes_, [&](const auto& each) {
        const auto& [key, known] = each;
        return calls_ - known.call > learner_.max_length() && cycles.count(key) == 0;
    });
    most_shapes_ = std::max(kIdleShapes, 2 * shapes_.size());
}

// Outside a cycle nobody wants the times; but a taken pair of events has to go back.
void Track::forget_times(const CallRecord& record) {
    if (record.events >= 0) {
        Waiting waiting;
        waiting.events = record.events;
        waiting.seen_ns = record.issued_ns;
        waiting_.push_back(waiting);
    }
    gap_ = true;
}

// Where the calls of each communicator stand.
void Track::number(const CallRecord& record, const CycleLearner::Step& step) {
    if (step.cycle == CycleLearner::kNone || step.locked || step.broken) {
        forget_iterations();
    }
    iteration_ += step.cycle != CycleLearner::kNone && step.position == 0 ? 1 : 0;
    if (record.ordinal == CallRecord::kNoOrdinal) {
        return;
    }
    if (numbers_.size() > kMostNumbered) {
        numbers_.clear();  // of communicators that are gone; the others are known again soon
    }
    Numbers& numbers = numbers_[number_key(record.comm_serial, series_of(record.function))];
    numbers.calls.latest = record.ordinal;
    if (iteration_ >= first_iteration_ && numbers.iteration != iteration_) {
        numbers.iteration = iteration_;
        numbers.calls.iteration_start = record.ordinal;
    }
}

void Track::forget_iterations() {
    first_iteration_ = iteration_ + 1;
}

Track::Numbered Track::numbered(std::uint32_t comm_serial, Series series) const {
    const auto found = numbers_.find(number_key(comm_serial, series));
    if (found == numbers_.end()) {
        return {};
    }
    Numbered calls = found->second.calls;
    if (found->second.iteration < first_iteration_) {
        calls.iteration_start = CallRecord::kNoOrdinal;
    }
    return calls;
}

void Track::count(const CycleLearner::Step& step) {
    if (step.locked) {
        adopt(step.cycle);
    }
    Cycle& cycle = cycles_[step.cycle];
    const bool ends = step.position + 1 == cycle.shape.size();
    if (step.locked) {
        iterations_ += step.repeats;
        cycle.profile->count_iterations(step.repeats);
        cycle.profile->count_calls(step.repeats * cycle.shape.size());
        // The same calls may be a part of an iteration when they come back: another phase of the
        // job.
        cycle.whole = false;
    } else {
        cycle.profile->count_calls(1);
        if (ends) {
            ++iterations_;
            cycle.profile->count_iterations(1);
        }
    }
    if (!cycle.whole && (step.locked || ends)) {
        cycle.whole = returns_to_buffers(cycle.gradients);
    }
}

void Track::lost_calls() {
    learner_.restart();
    gap_ = true;
}

void Track::settle() {
    while (!waiting_.empty() && waiting_.front().events < 0) {
        const Waiting& next = waiting_.front();
        if (next.cycle != CycleLearner::kNone) {
            if (next.gap_before || next.cycle != settled_cycle_) {
                cycles_[next.cycle].profile->interrupted();
                settled_cycle_ = next.cycle;
            }
            cycles_[next.cycle].profile->add(next.call);
        }
        waiting_.pop_front();
    }
}

std::size_t Track::cycle_length() const {
    return learner_.stable() ? learner_.cycles()[learner_.current()].size() : 0;
}

const CallTimes* Track::current_profile() const {
    return learner_.stable() ? cycles_[learner_.current()].profile.get() : nullptr;
}

const std::vector<CallRecord>& Track::current_shape() const {
    static const auto& none = *new std::vector<CallRecord>;  // never destroyed
    return learner_.stable() ? cycles_[learner_.current()].shape : none;
}

bool Track::whole() const {
    return learner_.stable() && cycles_[learner_.current()].whole;
}

void Track::restart_profile() {
    if (learner_.stable()) {
        Cycle& cycle = cycles_[learner_.current()];
        cycle.profile = std::make_unique<CallTimes>(cycle.shape.size());
        settled_cycle_ = CycleLearner::kNone;
    }
}

void Track::rotate(std::size_t position) {
    if (!learner_.stable() || position >= cycle_length()) {
        return;
    }
    const std::size_t length = cycle_length();
    const std::size_t current = learner_.current();
    learner_.rotate(position);
    std::vector<CallRecord>& shape = cycles_[current].shape;
    std::rotate(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(position), shape.end());
    for (Waiting& waiting : waiting_) {
        if (waiting.cycle == current) {
            waiting.call.position = (waiting.call.position + length - position) % length;
        }
    }
    restart_profile();
    forget_iterations();
}

const Track::Cycle* Track::main_cycle() const {
    const Cycle* best = nullptr;
    for (const Cycle& cycle : cycles_) {
        if (cycle.profile != nullptr &&
            (best == nullptr || cycle.profile->calls() > best->profile->calls())) {
            best = &cycle;
        }
    }
    return best;
}

const std::vector<CallRecord>& Track::main_shape() const {
    static const auto& none = *new std::vector<CallRecord>;  // never destroyed
    const Cycle* cycle = main_cycle();
    return cycle != nullptr ? cycle->shape : none;
}

const CallTimes* Track::main_profile() const {
    const Cycle* cycle = main_cycle();
    return cycle != nullptr ? cycle->profile.get() : nullptr;
}

}  // namespace deft
