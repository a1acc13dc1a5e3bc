// SPDX-License-Identifier: Apache-2.0
// The leader's answer to a learned cycle: which plan, or why none.
#include <algorithm>
#include <utility>

#include "shim/cuda/event_pool.h"
#include "shim/director/choice.h"
#include "shim/director/director.h"
#include "shim/director/optimizer.h"
#include "shim/director/settings.h"
#include "topology/base/config.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

constexpr std::size_t kMaxPlans = 16;  // remembered
// Lanes cost memory, and a profile grows old: a plan is made no earlier than this before the end of
// the warm-up.
constexpr double kPlanAheadMs = 60'000;
constexpr const char* kScaled =
    "the job scales its gradients, and late or merged ones would carry an older scale";
// NCCL enqueues the calls of a nonblocking communicator later, so that no event can be recorded
// behind them.
constexpr const char* kUntimed =
    "no call of the job's has been timed yet (a nonblocking communicator's never is)";
constexpr const char* kNoMemory =
    "a plan that delays or merges needs more memory than DEFT_MAX_SHADOW_BYTES allows";

void neither_late_nor_merged(Settings& settings, const char* why) {
    settings.max_delay = 0;
    settings.max_merge = 1;
    settings.limited = why;
    settings.unmeasured = false;  // to know it would change nothing
}

bool untimed(const Track& track) {
    const Profile* const profile = track.current_profile();
    const auto never = [](const Profile::Place& place) { return place.ready_ms.count() == 0; };
    return profile == nullptr ||
           std::all_of(profile->places().begin(), profile->places().end(), never);
}

// Once for each process that leads: who has asked for more should know why there is none.
void say_untrusted() {
    const char* const why = untrusted();
    if (why == nullptr) {
        return;
    }
    const Config& config = Config::process();
    const std::string plan =
        config.is(Key::Plan, "auto") ? "" : ", without DEFT_PLAN=" + config.text(Key::Plan);
    DEFT_WARN_ONCE(
        "DEFT_MODE=%s does what exact does%s: %s; if they are, set "
        "DEFT_GRADIENTS=trust on all ranks (docs/accuracy.md says which jobs that ruins)",
        config.text(Key::Mode).c_str(), plan.c_str(), why);
}

}  // namespace

// How long the job goes on before DEFT_WARMUP iterations are over, at its present pace.
double Director::warm_up_left_ms(const JobView& view) const {
    const std::uint64_t length = std::max<std::size_t>(view.gradients.size(), 1);
    const std::uint64_t done = switch_.calls() / length;
    const std::uint64_t wanted = Settings::process().warm_up;
    return wanted > done ? static_cast<double>(wanted - done) * profile_.iteration.median * 1e3 : 0;
}

// Why plans for this cycle must neither delay nor merge; null if they may. By the leader's cycle
// alone: on another rank it may have been found to begin elsewhere, and another gradient to be its
// last. A plan that the operator names is carried out all the same, where every rank can.
const char* Director::doubt_of(const JobView& view) const {
    const Settings set = Settings::process();
    if (set.mode < ShimMode::Deft) {
        return nullptr;
    }
    if (view.signature == unfit_signature_ && cuda::host_now() < unfit_until_ns_) {
        return unfit_why_.c_str();
    }
    return set.forced_merge > 0 ? nullptr : planned_for_.scaled ? kScaled : doubt_about(view);
}

// What the operator allows, less what doubt forbids.
Settings Director::allowed() const {
    Settings settings = Settings::process();
    if (doubt_ != nullptr) {
        neither_late_nor_merged(settings, doubt_);
    }
    return settings;
}

// True if there is a plan worth carrying out.
bool Director::decide(const Track& track, const JobView& view) {
    say_untrusted();
    if (const executor::Optimizer optimizer = known_optimizer();
        !planned_for_.same_kind(optimizer)) {
        planned_for_ = optimizer;
        // Made for another one, which may bear more. What was measured since may be under one of
        // them.
        profile_stale_ = profile_stale_ || (!plans_.empty() && facts_.switched > 0);
        plans_.clear();
    }
    planned_signature_ = 0;
    const Settings set = Settings::process();
    doubt_ = doubt_of(view);
    const bool passed = doubt_ == nullptr && doubted_signature_ == view.signature;
    doubted_signature_ = doubt_ != nullptr ? view.signature : 0;
    if (said_ == kUntimed || passed) {
        said_.clear();
    }
    auto known = plans_.find(view.signature);
    if (known != plans_.end() && doubt_ == nullptr && !known->second.sure) {
        plans_.erase(known);  // made in a doubt that has passed
        known = plans_.end();
        profile_stale_ = profile_stale_ || facts_.switched > 0;
    }
    if (profile_stale_) {  // taken under a plan that is forgotten
        return false;
    }
    if (known != plans_.end() && doubt_ != nullptr &&
        (set.mode == ShimMode::Covap || known->second.plan.predicted.late_or_merged())) {
        // Made without that doubt, which may pass: it waits, and nothing takes its place.
        planned_signature_ = view.signature;
        say(doubt_);
        return false;
    }
    if (known != plans_.end()) {
        // The cycle was interrupted and has come back. Its times are those under the plan now.
        planned_signature_ = view.signature;
        plan_ = known->second.plan;
        profile_ = known->second.profile;
        before_ms_ = known->second.before_ms;
        return true;
    }
    if (!view.measured) {
        if (said_.empty() && untimed(track)) {
            said_ = kUntimed;  // for the report; most are timed soon
        }
        return false;
    }
    planned_signature_ = view.signature;
    // Every plan of covap's merges; one that is named is the only one there is.
    if (doubt_ != nullptr && (set.mode == ShimMode::Covap || set.forced_merge > 0)) {
        say(doubt_);
        return false;
    }
    profile_ = view_job(track, true).profile;
    const double left_ms = warm_up_left_ms(view);
    if (left_ms > kPlanAheadMs) {
        planned_signature_ = 0;
        const double wait_ms = std::min(left_ms - kPlanAheadMs / 2, kPlanAheadMs / 4);
        retry_at_ns_ = cuda::host_now() + static_cast<std::int64_t>(wait_ms * 1e6);
        return false;
    }
    networks_only_ = wants_networks() && may_gain_by_networks();
    if (networks_only_) {
        plan_ = {};
        return true;
    }
    std::string note;
    Settings settings = allowed();
    plan_ = choose_plan(profile_, networks_, settings, note);
    const bool no_memory = set.mode == ShimMode::Deft && set.forced_merge == 0 &&
                           plan_.predicted.verdict == planner::Verdict::Use &&
                           !has_memory_for(plan_, view);
    if (no_memory) {  // what every call delivers itself needs none
        neither_late_nor_merged(settings, kNoMemory);
        plan_ = choose_plan(profile_, networks_, settings, note);
    }
    looked_again_ = false;
    before_ms_ = profile_.iteration.median * 1e3;
    if (plan_.predicted.verdict != planner::Verdict::Use) {
        DEFT_INFO("do nothing: no plan gains more than the noise (%s)", note.c_str());
        if (doubt_ != nullptr || no_memory) {
            said_ = settings.limited;  // in the note; this is for the report
        } else if (const char* const why = untrusted()) {
            said_ = why;
        }
        return false;
    }
    DEFT_INFO("plan: %s", note.c_str());
    if (plans_.size() < kMaxPlans) {
        plans_[view.signature] = {plan_, profile_, before_ms_, doubt_ == nullptr};
    }
    return true;
}

}  // namespace deft::director
