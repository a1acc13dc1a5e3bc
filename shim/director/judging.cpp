// SPDX-License-Identifier: Apache-2.0
// Whether a plan in force is worth it: its speed and its accuracy.
#include <algorithm>

#include "shim/director/choice.h"
#include "shim/director/director.h"
#include "shim/director/settings.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

// Iterations measured before and after, and by how much a plan must not be slower.
constexpr std::uint64_t kGainIterations = 40;
constexpr double kLoss = 0.02;

}  // namespace

// A plan that turns out slower than the job was is given up.
void Director::check_gain(Track& track, const JobView& view) {
    const Profile* const profile = track.current_profile();
    if (gain_checked_ || profile == nullptr || current_ == nullptr ||
        profile->iteration_ms().count() < kGainIterations || Settings::process().forced_merge > 0) {
        return;
    }
    // Both the middle and the fast end must say so: one of them alone is noise.
    const Summary now = profile->iteration_ms().summary();
    const double now_ms = now.median;
    if (now_ms <= before_ms_ * (1 + kLoss) ||
        now.p10 <= profile_.iteration.p10 * 1e3 * (1 + kLoss)) {
        gain_checked_ = true;
        DEFT_INFO("%.2f ms per iteration, %.2f ms before", now_ms, before_ms_);
    } else if (propose_forward(view)) {
        gain_checked_ = losing_ = true;
        DEFT_INFO("no gain: %.2f ms per iteration, %.2f ms before; the plan is given up", now_ms,
                  before_ms_);
    }
}

// Does what the guard decides.
void Director::watch_accuracy(const JobView& view) {
    if (guard_ == nullptr || view.gradients.empty()) {
        return;
    }
    {
        const std::lock_guard lock(inbox_mutex_);
        for (const auto& [rank, statistics] : measured_) {
            guard_->report(rank, statistics);
        }
        measured_.clear();
    }
    const guard::Decision decision = guard_->decide(iteration());
    if (decision.action == guard::Action::Keep) {
        return;
    }
    DEFT_WARN("accuracy guard: %s (%s)%s", to_string(decision.action), decision.reason.c_str(),
              decision.act ? "" : "; DEFT_GUARD=warn: the plan goes on");
    if (!decision.act) {
        return;
    }
    Settings settings = Settings::process();
    settings.max_delay = std::min(settings.max_delay, decision.max_delay);
    settings.max_merge = std::min(settings.max_merge, decision.max_merge);
    settings.forced_merge = 0;
    if (decision.action != guard::Action::FallBack &&
        (settings.max_delay > 0 || settings.max_merge > 1)) {
        std::string note;
        plan_ = choose_plan(profile_, networks_, settings, note);
        if (plan_.predicted.verdict == planner::Verdict::Use && propose_stage(view)) {
            DEFT_INFO("plan: %s", note.c_str());
            return;
        }
    }
    if (current_ != nullptr) {
        falling_ = propose_forward(view);
    }
}

}  // namespace deft::director
