// SPDX-License-Identifier: Apache-2.0
// The background thread's side of the director: from a learned cycle to a plan in force.
#include <algorithm>
#include <exception>
#include <utility>

#include "shim/cuda/event_pool.h"
#include "shim/director/director.h"
#include "shim/director/optimizer.h"
#include "shim/director/settings.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

// So often the learned cycle is made to begin elsewhere.
constexpr std::uint32_t kMostTurns = 8;

}  // namespace

bool Director::tick(Track& track) noexcept {
    const std::unique_lock lock(work_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
        return false;
    }
    // Not beside a hook that an abort has just released: it goes on with the lanes' streams.
    if (abandoned_.load(std::memory_order_acquire) && !aborting() && switch_.unreferenced()) {
        clean_up(true);
        abandoned_.store(!retired_.empty(), std::memory_order_release);
    }
    if (ended() || council_.verdict() != agreement::Verdict::On) {
        return false;
    }
    try {
        step(track);
    } catch (const std::exception& error) {
        say(error.what());
        recover();
    } catch (...) {
        recover();
    }
    remember_facts();  // the next look may be held up inside CUDA
    return staging_ != nullptr || course_ == Course::Staging || course_ == Course::Arming;
}

void Director::say(const char* why) {
    if (said_ != why) {
        said_ = why;
        DEFT_INFO("rank %d: nothing is planned: %s", info_.rank, why);
    }
}

void Director::enter(Course course) {
    course_ = course;
    course_since_ns_ = cuda::host_now();
}

// What is in force is watched on.
void Director::recover() {
    enter(current_ != nullptr ? Course::Running : Course::Resting);
}

// A plan that has been staged will come into force, at a call that has been named.
bool Director::armed() {
    const std::lock_guard lock(inbox_mutex_);
    return armed_committed_;
}

void Director::step(Track& track) {
    if (!switch_.has_driver()) {
        switch_.set_driver(cuda::Execution::get());
    }
    settle(track);
    take_orders();
    wind_up();
    lanes_.end_from(std::exchange(keep_lanes_, LaneSet::kMost), in_use());
    lanes_.close_idle(in_use());
    JobView view = view_job(track, false);
    if (view.reason.empty() && view.serial != info_.serial) {
        view.reason = "the gradients travel over another communicator";
    }
    if (council_.is_leader() && view.reason.empty()) {
        find_beginning(track, view);
    }
    if (staging_ != nullptr) {
        make_ready(view);
    }
    if (current_ != nullptr && council_.open()) {
        executor::Statistics statistics;
        while (current_->take(statistics)) {
            council_.report(guard::encode(statistics));
        }
    }
    if (council_.is_leader() && council_.open()) {
        lead(track, view);
    }
}

// The leader's cycle begins where the job's iteration does: that is the place that counts. Merged
// and late sums of one update would be of different iterations otherwise. The job says where when
// it asks for deft_should_step() or deft_flush(); without that the times tell, where they leave no
// doubt.
void Director::find_beginning(Track& track, JobView& view) {
    const std::uint64_t length = view.gradients.size();
    const std::uint64_t asked = switch_.iteration_begin();
    if (course_ != Course::Watching || staging_ != nullptr || turns_ >= kMostTurns) {
        return;
    }
    std::size_t position = 0;
    if (asked == kNever || asked + length <= view.start) {
        if (view.measured && view.signature != turned_signature_) {
            turned_signature_ = view.signature;
            position = beginning_of(track);
        }
    } else if (!beginning_ahead(view)) {
        position = beginning_at(track, (asked + length - view.start) % length);
    }
    if (position != 0) {
        ++turns_;
        track.turn(position);
        view = view_job(track, false);
    }
}

// The job has ended this plan by a change. Nothing is planned for a while if that happens often.
void Director::pause_after(const executor::Executor* plan, const char* what) {
    const std::uint64_t pause = plan == nullptr
                                    ? 0
                                    : back_off_.ended(switch_.calls(), plan->script().shapes.size(),
                                                      plan->stats().iterations);
    if (pause > 0) {
        say(("the job's " + std::string(what) + " changes often; planned again in " +
             std::to_string(pause) + " iterations")
                .c_str());
    }
}

// Takes note of what hooks and council have done since the last time.
void Director::settle(Track& track) {
    bool armed = false;
    bool forward = false;
    {
        const std::lock_guard lock(inbox_mutex_);
        armed = armed_committed_;
        forward = forward_committed_;
        if (std::exchange(forward_cancelled_, false) && !forward) {  // its reason stands: later
            gain_checked_ = gain_checked_ && !losing_;
            losing_ = falling_ = outdated_ = false;
            ++forward_tries_;
        }
    }
    executor::Executor* const active = switch_.active();
    const bool switched = !switch_.ahead();
    armed = armed && staged_ != nullptr;
    if (armed && active == staged_.get()) {  // Forward may have been named since
        retire(std::move(current_));
        current_ = std::move(staged_);
        const std::lock_guard lock(inbox_mutex_);
        armed_committed_ = false;
        staged_ready_ = 0;
        staged_pointer_ = nullptr;
        track.restart_profile();
        gain_checked_ = false;
        forward_tries_ = 0;
        enter(Course::Running);
        in_force_ = plan_ = staged_plan_;
        in_force_at_ = armed_at_;
        planned_signature_ = staged_signature_;
        tightening_ = false;
        interrupted_ = interrupted_ && current_->broken();
        ++facts_.switched;
        unfit_times_ = plan_.predicted.late_or_merged() ? 0 : unfit_times_;
        if (council_.is_leader() && guard_settings().mode != guard::Mode::Off &&
            planning_mode() >= ShimMode::Deft) {
            if (guard_ == nullptr) {
                guard_ = std::make_unique<guard::Guard>(guard_settings(), info_.nranks);
            }
            guard_->optimizer(guard_settings());
            measured_.clear();  // of the plan before, which nobody has looked at since it was armed
            guard_->plan_in_force(plan_, iteration());
        }
        DEFT_INFO("rank %d: plan in force", info_.rank);
    } else if (forward && switched && active == nullptr) {
        leave_staging();
        if (armed) {  // that plan came and went since the last look
            retire(std::exchange(current_, std::move(staged_)));
            ++facts_.switched;
        }
        if (outdated_) {
            pause_after(current_.get(), "optimizer, or what it does with its gradients,");
        }
        retire(std::move(current_));
        const std::lock_guard lock(inbox_mutex_);
        forward_committed_ = false;
        if (armed) {
            armed_committed_ = false;
            staged_ready_ = 0;
            staged_pointer_ = nullptr;
        }
        track.restart_profile();
        if (guard_ != nullptr) {
            guard_->plan_in_force({}, iteration());
        }
        const bool fallen = guard_ != nullptr && guard_->fallen();
        const bool again = losing_ && networks_.size() > 1;
        enter(fallen ? Course::Fallen : again || outdated_ ? Course::Watching : Course::Resting);
        if (again && !fallen) {
            without_networks();
        }
        if (outdated_) {
            planned_signature_ = 0;
            if (const executor::Optimizer known = known_optimizer();
                !planned_for_.same_kind(known)) {
                planned_for_ = known;
                plans_.clear();
            }
        }
        falling_ = losing_ = outdated_ = false;
        DEFT_INFO("rank %d: calls are forwarded again", info_.rank);
    }
    if (current_ != nullptr && current_->broken() && active == current_.get()) {
        if (switch_.withdraw(current_.get())) {
            DEFT_INFO("rank %d: the plan has ended (%s); calls are forwarded and learned again",
                      info_.rank, to_string(current_->why()));
            // One that the job itself has asked for is no change of its iteration.
            const bool asked = current_->why() == executor::BreakReason::Stopped;
            // What has ended the plan in force, and moved the call of the next, is one change.
            const bool misplaced = current_->why() == executor::BreakReason::Misplaced;
            const bool counted = misplaced && interrupted_;
            plan_failed_ = plan_failed_ || current_->why() == executor::BreakReason::Error;
            interrupted_ = !asked && !misplaced;
            if (!asked && !counted) {
                pause_after(current_.get(), "iteration");
            }
            facts_.ended += asked ? 0 : 1;
            retire(std::move(current_));
            planned_signature_ = 0;
            leave_staging();
            tightening_ = false;
            const bool fallen = guard_ != nullptr && guard_->fallen();  // so it may not come back
            if (guard_ != nullptr) {
                guard_->plan_in_force({}, iteration());
            }
            enter(plan_failed_ ? Course::Resting : fallen ? Course::Fallen : Course::Watching);
            if (plan_failed_) {
                say(kPlanFailed);
            }
        }
    }
    // What a hook may still hold is freed when none is inside: it was taken out of force before.
    if (!retired_.empty() && switch_.unreferenced()) {
        free_retired();
    }
}

void Director::lead(Track& track, const JobView& view) {
    if (!tell_given_up()) {
        return;
    }
    if (profile_stale_ && course_ == Course::Watching && view.reason.empty()) {
        profile_stale_ = false;
        track.restart_profile();
        return;
    }
    switch (course_) {
        case Course::Watching:
            if (!view.reason.empty()) {
                if (view.learned) {
                    say(view.reason.c_str());
                }
            } else if (beginning_ahead(view)) {
                break;  // and at the next look it may be another iteration
            } else if (back_off_.holds(switch_.calls())) {
                break;
            } else if ((view.signature != planned_signature_ ||
                        !planned_for_.same_kind(known_optimizer()) ||
                        (doubted_signature_ == view.signature && doubt_of(view) == nullptr)) &&
                       cuda::host_now() >= retry_at_ns_ && !armed() && decide(track, view) &&
                       !propose_stage(view)) {
                planned_signature_ = 0;  // the council is busy: try again
            }
            break;
        case Course::Staging:
            if (!give_way_to_guard() && !give_way_to_used_map(view)) {
                watch_staging();
            }
            break;
        case Course::Arming:
            if (!give_way_to_guard() && !give_way_to_used_map(view)) {
                propose_arm(view);
            }
            break;
        case Course::Running:
            if (!ending()) {
                watch_accuracy(view);
            }
            if (!ending() && course_ == Course::Running) {
                check_optimizer();
            }
            if (!ending() && course_ == Course::Running) {
                check_used_map(view);
            }
            if (!ending() && course_ == Course::Running) {
                check_gain(track, view);
            }
            if (!ending() && course_ == Course::Running) {
                look_again(track, view);
            }
            break;
        case Course::Fallen:
            watch_accuracy(view);
            break;
        case Course::Resting:
            break;
    }
    close_unused(view);
}

void Director::retire(std::unique_ptr<executor::Executor> old) {
    if (old != nullptr) {
        note_counters(*old);
        retired_.push_back(std::move(old));
    }
}

// Once no hook is inside: one that an end has overtaken writes what in_flight() looks at.
void Director::free_retired() noexcept {
    for (const auto& old : retired_) {
        facts_.dropped += old->in_flight();
    }
    retired_.clear();
}

// Iterations of the job so far, by the calls of the plan's cycle.
std::uint64_t Director::iteration() const {
    const std::uint64_t length = std::max<std::uint64_t>(plan_.bucket_bytes.size(), 1);
    return switch_.calls() / length;
}

}  // namespace deft::director
