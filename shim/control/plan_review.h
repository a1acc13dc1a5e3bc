// SPDX-License-Identifier: Apache-2.0
// Whether a plan in force is worth it: its speed, its accuracy, and what it was made for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/model/plan.h"
#include "shim/control/communicator_info.h"
#include "shim/control/follower.h"
#include "shim/control/inbox.h"
#include "shim/control/job_view.h"
#include "shim/control/plan_report.h"
#include "shim/control/plan_selector.h"
#include "shim/guard/guard.h"
#include "shim/learning/track.h"

namespace deft::director {

struct Settings;

// On the leader. It judges; the Leader acts on what it finds. Threads: the shim's background
// thread.
class PlanReview {
public:
    PlanReview(const CommunicatorInfo& info, Inbox& inbox, Follower& follower,
               PlanSelector& selector)
        : info_(info), inbox_(inbox), follower_(follower), selector_(selector) {}
    PlanReview(const PlanReview&) = delete;

    // The follower's plan has come into force; no plan is in force any more.
    void note_in_force();
    void note_none();
    // The plan in force was to end for want of a gain, and that was cancelled.
    void check_gain_again() { gain_checked_ = false; }

    // A prediction that suits one optimizer makes another diverge, and some bear no delay at all.
    bool made_for_another_optimizer() const;
    // DDP tells which parameters were used, for which the plan is not: doubt_about().
    static bool used_map_concerns(const planner::Plan& plan, const JobView& view);

    // Iterations under the plan, and before it, in ms.
    struct Gain {
        double now_ms = 0;
        double before_ms = 0;
    };
    // The plan is slower than none; null: it is not, or that is not known yet.
    std::optional<Gain> loss(const Track& track, const JobView& view);
    void note_loss(const Gain& gain);
    // The latest, for people.
    const std::string& loss_words() const { return loss_words_; }

    // What a plan takes that was made from guesses is known better: a plan that is better by that,
    // and what it was made for. Null: there is none. Looked at once for each plan made from
    // guesses. A plan that turns out slower than the one whose place it took gives it back.
    struct Better {
        planner::Plan plan;
        planner::Profile profile;
        std::string note;
        std::optional<Summary> under_old{};  // ms; iterations of the plan in force, to be judged by
        bool back = false;                   // it was in force before this one
        std::vector<double> factors{};       // by lane, what it is made by (lane_factors.h)
    };
    std::optional<Better> look_again(const Track& track, const JobView& view);
    // It is being made ready; else it is found again.
    void note_proposed(const Better& better);
    // Nothing comes of it. A plan that was to come back is asked for again later, a few times.
    void note_declined();
    // Nor of the plans that it was to be judged by.
    void note_over() { replaced_.reset(); }

    // The accuracy guard.
    bool guarding() const { return guard_ != nullptr; }
    guard::Decision ask_guard();
    // What companions have told since the last look, whatever is in force.
    void note_training();
    // A fall has been decided, and holds; a tighter plan is wanted.
    bool fallen() const { return guard_ != nullptr && guard_->fallen(); }
    bool wants_tighter() const { return guard_ != nullptr && guard_->tightening(); }
    std::uint64_t decisions() const { return guard_ != nullptr ? guard_->decisions() : 0; }
    const std::vector<GuardEvent>& guard_history() const { return history_; }
    guard::LateStretch late_stretch() const {
        return guard_ == nullptr ? guard::LateStretch() : guard_->stretch();
    }
    // Where the guard has asked for it, the cycle gets another plan.
    void plan_tighter(const guard::Decision& decision);
    void tightened_in_vain();
    // Such a plan has been staged.
    bool tightening() const { return tightening_; }
    void set_tightening(bool tightening) { tightening_ = tightening; }
    // The council has closed, so the guard hears nothing of other ranks and cannot end the plan:
    // true once, where the job goes on like that.
    bool misses_guard();
    // Why this rank does not vouch for the plan in force: its guard is blind, or has been passed
    // over. "": it does.
    const char* why_not_vouch();
    // The plan has ended because a rank did not vouch for it.
    void note_lapsed();

    // The communicator has ended.
    void forget() noexcept { guard_.reset(); }

private:
    bool may_go_back() const;
    std::optional<Better> go_back(const Track& track, const JobView& view);
    void take_lane_times();
    std::vector<double> believed_factors(const planner::Plan& plan, double took,
                                         const planner::Profile& profile) const;
    std::optional<Better> look_at_lanes(const Track& track, const JobView& view,
                                        const Settings& settings);
    std::optional<Better> look_at_layers(planner::Profile corrected, const Settings& settings);
    bool make_guard();
    void note_seen();
    void note_decision(const guard::Decision& decision);
    void note_harm();

    const CommunicatorInfo& info_;
    Inbox& inbox_;
    Follower& follower_;
    PlanSelector& selector_;
    std::unique_ptr<guard::Guard> guard_;  // from the first plan in force on
    // The plan whose place a better one is to take, and its iterations; until that has shown
    // itself, or given the place back.
    struct Replaced {
        planner::Plan plan;
        Summary iteration_ms;
        std::uint64_t by = 0;  // fingerprint of the better one
        bool returning = false;
        std::uint32_t tries = 0;  // to return, in vain
    };
    std::optional<Replaced> replaced_;
    bool gain_checked_ = false;
    bool gains_nothing_ = false;  // the plan in force, by what it has shown
    std::string loss_words_;
    bool tightening_ = false;
    bool guard_missed_ = false;        // and said so
    std::vector<GuardEvent> history_;  // of guard_'s decisions, the first of them
    bool fell_ = false;                // the last of them, whose end is still to be told
    std::uint64_t in_force_at_ = 0;    // iteration
    std::uint64_t dropped_ = 0;        // before the last of them
    std::uint64_t seen_ = 0;  // what the guard had seen, and when that was: iteration, host_now()
    std::uint64_t seen_at_ = 0;
    std::int64_t seen_ns_ = 0;
};

}  // namespace deft::director
