// SPDX-License-Identifier: Apache-2.0
// The leader's answer to a learned cycle: which plan it gets, or why none. And what the answer
// depends on: the job's profile, its optimizer, doubts, other networks, memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/plan.h"
#include "planner/model/profile.h"
#include "shim/control/backoff.h"
#include "shim/control/communicator_info.h"
#include "shim/control/follower.h"
#include "shim/control/job_view.h"
#include "shim/control/lane_set.h"
#include "shim/control/plan_doubts.h"
#include "shim/control/plan_price.h"
#include "shim/control/plan_switch.h"
#include "shim/control/problem.h"
#include "shim/control/proof.h"
#include "shim/learning/track.h"
#include "shim/settings/companion.h"
#include "shim/settings/settings.h"

namespace deft::director {

// Threads: the shim's background thread.
class PlanSelector {
public:
    PlanSelector(const CommunicatorInfo& info, const PlanSwitch& plan_switch, const LaneSet& lanes,
                 Follower& follower);
    PlanSelector(const PlanSelector&) = delete;

    // This cycle has not been decided about, or something has changed since, and it is time.
    bool due(const JobView& view) const;
    // Decides. True if there is a plan worth carrying out, which is the follower's plan() then; an
    // empty one: only_networks(). Throws std::invalid_argument where nothing can be planned.
    bool select(const Track& track, const JobView& view);
    // The signature of the cycle that was decided about last; 0: it is to be decided anew.
    std::uint64_t signature() const { return signature_; }
    void set_signature(std::uint64_t signature) { signature_ = signature; }
    void select_anew() { signature_ = 0; }
    // Not before `pause_ns` have passed.
    void select_anew_after(std::uint64_t pause_ns);

    // The job's profile was taken under something that is gone, and has to be taken anew.
    bool profile_stale() const { return profile_stale_; }
    void profile_restarted() { profile_stale_ = false; }

    // The staging that comes is for lanes over other networks alone, made and measured
    // (DEFT_LANES).
    bool only_networks() const { return only_networks_; }
    void no_networks_now() { only_networks_ = false; }
    void networks_measured(const std::vector<executor::LaneSpeed>& speeds);
    void networks_refused(const Problem& problem);
    // The lane over the job's own network, for plans under which layers wait for their own.
    void lane_measured(const executor::LaneSpeed& speed);
    // A plan over them was slower than none.
    void drop_networks();
    // What lanes took under a plan for this cycle: lane_factors().
    void note_taken(std::uint64_t signature, const std::vector<double>& factors);

    // A plan for the cycle as it is known now, and the networks that it is made for. Throw as
    // choose_plan() does.
    static planner::Plan plan_for(const JobView& view, const planner::Profile& profile,
                                  const std::vector<planner::Link>& networks,
                                  const Settings& settings, std::string& note);
    static planner::Fabric fabric_for(const JobView& view, const planner::Profile& profile,
                                      const std::vector<planner::Link>& networks);

    // As PlanDoubts.
    void note_unproven(Unproven unproven) { doubts_.note_unproven(std::move(unproven)); }
    const char* unproven() const { return doubts_.unproven(); }

    // What this rank's companion has measured of the job's steps; null: nothing.
    void note_steps(std::optional<MeasuredSteps> steps) { steps_ = steps; }
    // In words: the plan's late or merged gradients are more than these steps bear. Null: they are
    // not, as far as that was measured, or the operator has named the plan. Stays good.
    const char* priced_out(const planner::Plan& plan);
    // What late and merged gradients cost this job, for the choice between plans.
    void put_prices(Settings& settings);

    // On every rank layers wait for their own gradients, so plans for that may be made.
    void note_layers(Unproven unproven);
    // In words: why such plans may not be carried out. Null: they may. Stays good.
    const char* layers_do_not_wait() const { return layers_ ? nullptr : why_no_layers_; }

    // A rank cannot carry out this plan for want of memory, most likely.
    void note_unfit(const Problem& problem, std::uint64_t signature);
    // The follower's plan has come into force.
    void note_in_force();
    // The plan in force has ended because of another optimizer or doubt.
    void note_outdated();

    // What the operator allows, less what doubt forbids, and what it costs.
    Settings allowed();
    // The plan that a cycle gets from now on.
    void remember(std::uint64_t signature, planner::Plan plan, const planner::Profile& profile);
    // The plan of the cycle that was decided about last.
    const planner::Plan& remembered() { return plans_[signature_].plan; }
    // It is taken up again after an interruption.
    void replace_remembered(const planner::Plan& plan);

    // The profile that the latest plan was made for, and the job's median iteration before it.
    const planner::Profile& profile() const { return profile_; }
    void set_profile(planner::Profile profile) { profile_ = std::move(profile); }
    double before_ms() const { return before_.median * 1e3; }
    const planner::Spread& before() const { return before_; }
    // What the networks can do, the job's own first; empty: there is no other.
    const std::vector<planner::Link>& networks() const { return networks_; }
    const executor::Optimizer& optimizer() const { return optimizer_; }
    // The latest plan was made from guesses, and has been looked at again.
    bool reestimated() const { return reestimated_; }
    void set_reestimated(bool reestimated);

    // The communicator has ended.
    void forget() noexcept;

private:
    struct Made {
        planner::Plan plan;
        planner::Profile profile;
        planner::Spread before{};
        bool sure = true;  // not made in doubt
        bool reestimated = false;
    };
    using Plans = std::map<std::uint64_t, Made>;

    void note_optimizer();
    void decide_about_doubts(const JobView& view);
    Plans::iterator find_known(const JobView& view);
    bool take_known(const JobView& view, const Made& known);
    bool too_early(const JobView& view);
    double warm_up_left_ms(const JobView& view) const;
    bool wants_networks() const;
    bool choose(const JobView& view);
    void say_unpriced(const planner::Plan& plan) const;
    const char* keep_within_price(const JobView& view, Settings& settings, planner::Plan& plan,
                                  std::string& note);

    const std::uint32_t serial_;  // of the communicator
    const int nranks_;
    const PlanSwitch& switch_;
    const LaneSet& lanes_;
    Follower& follower_;

    std::uint64_t signature_ = 0;   // already decided about
    std::int64_t retry_at_ns_ = 0;  // not before
    Plans plans_;                   // by signature: what that cycle gets, or had last
    executor::Optimizer optimizer_;
    PlanDoubts doubts_;
    Reasons told_;  // priced_out(), layers_do_not_wait()
    std::optional<MeasuredSteps> steps_;
    PlanPrices prices_;
    double dearest_ = 0;       // largest bound of the plans that were too dear; 0: none was
    bool price_said_ = false;  // that a plan was too dear
    bool layers_ = false;
    executor::LaneSpeed lane_;  // per_byte 0: it was not measured
    bool cuts_ = true;          // two ranks: Settings::cuts
    const char* why_no_layers_ = "nothing is proven";
    planner::Profile profile_;  // the latest plan was made for
    // The job's profile was taken next to the lanes' own transfers, or under a plan forgotten.
    bool profile_stale_ = false;
    bool reestimated_ = false;
    planner::Spread before_{};  // the job's iteration before the latest plan

    bool only_networks_ = false;
    bool networks_off_ = false;  // they cannot be made, or did not help
    Backoff networks_backoff_;
    std::vector<planner::Link> networks_;
    // The job's own transfers take so many times as long under a plan for this cycle.
    struct Taken {
        std::uint64_t signature = 0;
        double factor = 1;
    };
    Taken taken_;
};

}  // namespace deft::director
