// SPDX-License-Identifier: Apache-2.0
#include "perf/common/relay/direction.h"

#include <algorithm>
#include <utility>

namespace relay {
namespace {

constexpr std::size_t kMostWaiting = 20000;  // frames; a bound where no rate sets one

// Which of a frame's dice is thrown. Each has its own, so that adding an impairment leaves the
// others' fates as they were.
enum Salt : std::uint64_t {
    kLoss = 1,
    kAcknowledgementLoss,
    kDuplicate,
    kReorder,
    kJitter,
    kBitError,
    kBitErrorPlace,
    kSilentBitError,
    kSilentBitErrorPlace,
    kReset,
};

std::uint64_t mixed(std::uint64_t value) {  // splitmix64's finaliser
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

}  // namespace

std::uint64_t Direction::random(std::uint64_t salt) const {
    return mixed(seed_ ^ mixed(index_ * 16 + salt));
}

double Direction::share(std::uint64_t salt) const {
    return static_cast<double>(random(salt) >> 11) * 0x1p-53;
}

bool Direction::forgotten(const Layout& layout) {
    if (impairments.forget != forgetting_) {
        forgetting_ = impairments.forget;
        forgotten_ = forgetting_ ? known_ : std::unordered_set<std::uint64_t>{};
    }
    if (!layout.tcp) {
        return false;
    }
    known_.insert(layout.connection);
    return forgotten_.contains(layout.connection);
}

bool Direction::vanishes(const Layout& layout) {
    if (impairments.black_hole) {
        ++counters_.in_black_hole;
        return true;
    }
    if (!layout.ip) {
        return false;  // ARP has no acknowledgements of its own: its loss is a black hole's affair
    }
    if (impairments.hole != 0 && layout.ip_bytes() > impairments.hole) {
        ++counters_.in_hole;
        return true;
    }
    if (forgotten(layout)) {
        ++counters_.forgotten;
        return true;
    }
    if (share(kLoss) < impairments.loss) {
        ++counters_.lost;
        return true;
    }
    if (layout.pure_acknowledgement &&
        share(kAcknowledgementLoss) < impairments.acknowledgement_loss) {
        ++counters_.acknowledgements_lost;
        return true;
    }
    return false;
}

void Direction::damage(Frame& frame, const Layout& layout) {
    if (!layout.ip) {
        return;
    }
    if (share(kBitError) < impairments.bit_errors) {
        flip_a_bit(frame, layout, random(kBitErrorPlace));
        ++counters_.bit_errors;
    } else if (share(kSilentBitError) < impairments.silent_bit_errors &&
               flip_a_bit_silently(frame, layout, random(kSilentBitErrorPlace))) {
        ++counters_.silent_bit_errors;
    } else if (layout.tcp && layout.payload_bytes() > 0 && share(kReset) < impairments.resets) {
        make_reset(frame, layout);
        ++counters_.resets;
    }
}

void Direction::offer(Frame frame, Nanoseconds now) {
    ++counters_.received;
    ++index_;
    const Layout layout = layout_of(frame);
    if (vanishes(layout)) {
        return;
    }
    damage(frame, layout);
    const bool twice = layout.ip && share(kDuplicate) < impairments.duplicate;
    const bool hold_back = layout.ip && share(kReorder) < impairments.reorder;
    if (twice) {
        ++counters_.duplicated;
        enqueue(frame, now, false);
    }
    if (hold_back) {
        ++counters_.held_back;
    }
    enqueue(std::move(frame), now, hold_back);
}

void Direction::enqueue(Frame frame, Nanoseconds now, bool hold_back) {
    Nanoseconds leaves = now;
    if (impairments.bit_per_s != 0) {
        const Nanoseconds begins = std::max(now, free_at_);
        if (begins - now > impairments.queue) {
            ++counters_.overflowed;
            return;
        }
        leaves = begins + static_cast<Nanoseconds>(8e9 * static_cast<double>(frame.size()) /
                                                   static_cast<double>(impairments.bit_per_s));
        free_at_ = leaves;
    } else if (waiting_.size() >= kMostWaiting) {
        ++counters_.overflowed;
        return;
    }
    Nanoseconds due =
        leaves + impairments.delay +
        static_cast<Nanoseconds>(share(kJitter) * static_cast<double>(impairments.jitter));
    if (hold_back) {
        due += impairments.reorder_by;
    } else {
        due = std::max(due, last_due_);
        last_due_ = due;
    }
    waiting_.push({due, order_++, std::move(frame)});
}

bool Direction::take(Nanoseconds now, Frame& frame) {
    if (waiting_.empty() || waiting_.top().due > now) {
        return false;
    }
    frame = std::move(waiting_.top().frame);
    waiting_.pop();
    ++counters_.forwarded;
    counters_.forwarded_bytes += frame.size();
    return true;
}

}  // namespace relay
