// SPDX-License-Identifier: Apache-2.0
// At which call a plan comes into force, or every call is forwarded again.
#include <algorithm>

#include "shim/cuda/event_pool.h"
#include "shim/director/director.h"
#include "shim/director/settings.h"

namespace deft::director {
namespace {

constexpr std::int64_t kArmDeadline = 30'000'000'000;
constexpr std::uint64_t kArmTries = 5;
// The switch lies this far ahead of the rank that is furthest.
constexpr double kSwitchAheadMs = 500;
constexpr std::uint64_t kSwitchAheadIterations = 3;

}  // namespace

// The start of an iteration far enough ahead of every rank; of a period, if a plan is in force, so
// that no sum is half made. Iterations are those of the plan in force, which need not be learned at
// the moment, or else those of the view.
std::uint64_t Director::switch_call(const JobView& view, std::uint64_t not_before,
                                    std::uint64_t tries) {
    const bool planned = current_ != nullptr;
    const std::uint64_t length = planned ? in_force_.bucket_bytes.size() : view.gradients.size();
    std::uint64_t furthest = switch_.calls();
    {
        const std::lock_guard lock(inbox_mutex_);
        for (const auto& [rank, staged] : answers_) {
            furthest = std::max(furthest, staged.ordinal);
        }
    }
    const double iteration_ms = std::max(before_ms_, 0.1);
    const std::uint64_t ahead =
        kSwitchAheadIterations + static_cast<std::uint64_t>(kSwitchAheadMs / iteration_ms);
    const std::uint64_t from = std::max(furthest + (ahead << tries) * length, not_before);
    const std::uint64_t start = planned ? in_force_at_ : view.start;
    const std::uint64_t step = length * (planned ? in_force_.period : 1);
    const std::uint64_t past = from > start ? from - start : 0;
    return start + (past + step - 1) / step * step;
}

void Director::propose_arm(const JobView& view) {
    if (armed()) {
        return;  // settle() sees it come into force
    }
    {
        const std::lock_guard lock(inbox_mutex_);
        if (arm_proposed_ && !arm_cancelled_) {
            return;
        }
        arm_cancelled_ = false;
    }
    if (arm_proposed_) {
        ++arm_tries_;
        arm_proposed_ = false;
    }
    const bool late = cuda::host_now() - course_since_ns_ > kArmDeadline;
    const bool other = view.reason.empty() && view.signature != planned_signature_;
    if (arm_tries_ >= kArmTries || late || other) {
        give_up_staging(Kind::Discard);
        refuse({other                 ? "the job's iteration has changed"
                : view.reason.empty() ? "the ranks did not agree on a call to switch at"
                                      : view.reason,
                true});
        return;
    }
    if (!view.reason.empty()) {
        return;  // a metric, a barrier: the cycle is seen again soon
    }
    agreement::Proposal proposal;
    proposal.serial = next_serial_++;
    Order order;
    order.ordinal = switch_.calls();  // before the switch is looked for
    armed_at_ = switch_call(view, Settings::process().warm_up * view.gradients.size(), arm_tries_);
    proposal.switch_call = armed_at_;
    order.kind = Kind::Arm;
    order.stage = stage_serial_;
    order.signature = view.signature;
    proposal.body = encode(order);
    arm_proposed_ = council_.propose(std::move(proposal));
}

// Ends the plan in force, whatever is known of the job at the moment.
bool Director::propose_forward() {
    if (armed()) {
        return false;
    }
    agreement::Proposal proposal;
    proposal.serial = next_serial_++;
    proposal.switch_call = switch_call({}, 0, std::min(forward_tries_, kArmTries));
    Order order;
    order.kind = Kind::Forward;
    proposal.body = encode(order);
    return council_.propose(std::move(proposal));
}

}  // namespace deft::director
