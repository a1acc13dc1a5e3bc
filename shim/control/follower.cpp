// SPDX-License-Identifier: Apache-2.0
#include "shim/control/follower.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "planner/model/plan_json.h"
#include "shim/control/guard_settings.h"
#include "shim/control/kill_switch.h"
#include "shim/control/plan_choice.h"
#include "shim/control/plan_facts.h"
#include "shim/control/proof.h"
#include "shim/cuda/event_pool.h"
#include "shim/settings/settings.h"
#include "shim/settings/training.h"

namespace deft::director {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// A rank that has not learned the cycle by then is in another one.
constexpr std::int64_t kLearnDeadline = 20 * kSecond;
// A rank that leaves finishes the lane that it is making; torn down here, the lane would look to
// that rank like a link that died.
constexpr std::int64_t kLanesGrace = 3 * kSecond;
// For so long a rank vouches for a plan. Looks are a fraction of a second apart, but one that makes
// lanes takes as long as the other ranks want, up to a lane's deadline.
constexpr std::int64_t kVouchNs = 10 * kSecond;
// So often the leader is told again that the kill switch is there.
constexpr std::int64_t kHaltEvery = 5 * kSecond;
constexpr const char* kLayersDoNotWait = "layers do not wait for their own gradients";
constexpr const char* kPlanFailed = "an operation of a plan failed on this rank";

}  // namespace

Follower::Follower(const CommunicatorInfo& info, agreement::Council& council, Inbox& inbox,
                   PlanSwitch& plan_switch, LaneSet& lanes)
    : info_(info), council_(council), inbox_(inbox), switch_(plan_switch), lanes_(lanes) {}

void Follower::say(const char* why) {
    if (said_ != why) {
        said_ = why;
        DEFT_INFO("rank %d: nothing is planned: %s", info_.rank, why);
    }
}

const char* Follower::state_name() const {
    switch (state_) {
        case State::Watching:
            return "watching";
        case State::Running:
            return "running";
        case State::Resting:
            return "resting";
    }
    return "";
}

Follower::Switched Follower::take_switch() {
    inbox_.note_voided(switch_.voided());
    const Inbox::Switches decided = inbox_.switches();
    const executor::Executor* const active = switch_.active();
    const bool ahead = switch_.ahead();
    const bool armed = decided.armed && staged_ != nullptr;
    if (armed && active == staged_.get()) {  // Forward may have been named since
        retire(std::exchange(current_, std::move(staged_)));
        inbox_.in_force();
        state_ = State::Running;
        plan_ = staged_plan_;
        in_force_ = staged_plan_;
        interrupted_ = interrupted_ && current_->broken();
        ++facts_.switched;
        return Switched::InForce;
    }
    if (decided.forward && !ahead && active == nullptr) {
        if (armed) {  // that plan came and went since the last look
            retire(std::exchange(current_, std::move(staged_)));
            ++facts_.switched;
        }
        retire(std::move(current_));
        inbox_.forwarding(armed);
        state_ = State::Resting;
        return Switched::Forwarding;
    }
    return Switched::None;
}

bool Follower::take_end() {
    if (current_ == nullptr || !current_->broken() || !switch_.withdraw(current_.get())) {
        return false;
    }
    const executor::BreakReason why = current_->why();
    DEFT_INFO("rank %d: the plan has ended (%s); calls are forwarded and learned again", info_.rank,
              to_string(why));
    // A plan that the job itself has ended by a call is no change of its iteration.
    const bool asked = why == executor::BreakReason::Stopped;
    // What has ended the plan in force, and moved the call of the next, is one change.
    const bool misplaced = why == executor::BreakReason::Misplaced;
    const bool counted = misplaced && interrupted_;
    plan_failed_ = plan_failed_ || why == executor::BreakReason::Error;
    plan_lapsed_ = why == executor::BreakReason::Lease;
    if (plan_lapsed_ && !current_->vouched()) {
        DEFT_WARN("rank %d: the plan has ended, because %s", info_.rank,
                  why_not_vouched_.empty() ? "deft's thread was held up for ten seconds"
                                           : why_not_vouched_.c_str());
    }
    interrupted_ = !asked && !misplaced && !plan_lapsed_;
    retire(std::move(current_));
    if (!asked && !counted && !plan_lapsed_) {
        pause_after_end("iteration");
    }
    facts_.ended += asked ? 0 : 1;
    state_ = plan_failed_ ? State::Resting : State::Watching;
    if (plan_failed_) {
        say(kPlanFailed);
    }
    return true;
}

void Follower::pause_after_end(const char* what) {
    const std::uint64_t pause =
        ended_length_ == 0 ? 0 : backoff_.ended(switch_.calls(), ended_length_, ended_iterations_);
    if (pause > 0) {
        say(("the job's " + std::string(what) + " changes often; planned again in " +
             std::to_string(pause) + " iterations")
                .c_str());
    }
}

void Follower::retire(std::unique_ptr<executor::Executor> old) {
    ended_length_ = 0;
    if (old != nullptr) {
        ended_length_ = old->script().shapes.size();
        ended_iterations_ = old->stats().iterations;
        add_counters(*old, facts_);
        retired_.push_back(std::move(old));
    }
}

// Once no hook is inside: a hook that an end has overtaken writes what in_flight() looks at. What a
// hook may still hold was taken out of force before.
void Follower::free_retired() noexcept {
    if (retired_.empty() || !switch_.unreferenced()) {
        return;
    }
    for (const auto& old : retired_) {
        facts_.dropped += old->in_flight();
    }
    retired_.clear();
}

void Follower::take_orders() {
    std::unique_ptr<executor::Executor> discarded;  // freed when the lock is not held any more
    if (inbox_.take_discard()) {
        discarded = std::move(staged_);
    }
    inbox_.take_orders([&](Order order, bool discard) {
        if (discard) {
            discarded = std::move(staged_);
        }
        take_order(std::move(order));
    });
}

void Follower::take_order(Order order) {
    if (order.kind == Kind::Close) {
        keep_lanes_ = std::min<std::size_t>(order.keep, LaneSet::kMost);
    } else if (order.kind == Kind::Stage) {
        staging_ = std::make_unique<Staging>();
        staging_->order = std::move(order);
        staging_->since_ns = cuda::host_now();
        const std::string& plan = staging_->order.plan;
        if (!plan.empty()) {
            const planner::Plan staged = planner::plan_from_json(plan);
            staging_->late = staged.predicted.late_or_merged();
            staging_->layers = staged.barrier == planner::Barrier::Layer;
        }
    } else if (staging_ != nullptr && order.stage == staging_->order.stage) {
        if (order.kind == Kind::Drop) {
            staging_->dropped = true;
        } else if (order.kind == Kind::Discard) {
            staging_->discarded = true;
        } else if (order.kind == Kind::Open) {
            staging_->open = true;
            staging_->order.keep = order.keep;
            staging_->order.lanes = std::move(order.lanes);
        }
    }
}

// A switch that was named before is made all the same.
bool Follower::wind_up() {
    if (!inbox_.closed()) {
        return false;
    }
    if (staged_ != nullptr && inbox_.unstage(staged_.get())) {
        staged_.reset();
    }
    if (closed_ns_ == 0) {
        closed_ns_ = cuda::host_now();
        closed_at_ = switch_.calls();
    }
    if (staging_ != nullptr) {
        staging_->discarded = true;  // lanes that others are making already are made with them
    }
    if (cuda::host_now() - closed_ns_ <= kLanesGrace) {
        return true;
    }
    switch_.drop_renewal();
    // Those that have been in a plan in force may be at its last transfers, here or with others.
    if (staged_ == nullptr && staging_ == nullptr) {
        keep_lanes_ = std::max(switch_.used_lanes(), current_ != nullptr ? current_->lanes() : 0);
    }
    return true;
}

void Follower::end_unused_lanes() {
    lanes_.end_from(std::exchange(keep_lanes_, LaneSet::kMost), in_use());
    lanes_.end_doubted();
    lanes_.close_idle(in_use());
}

LaneSet::InUse Follower::in_use() const {
    LaneSet::InUse use;
    use.staged = switch_.uses(staged_.get());
    const auto count = [&use](const std::unique_ptr<executor::Executor>& executor) {
        use.lanes = std::max(use.lanes, executor != nullptr ? executor->lanes() : 0);
    };
    count(current_);
    count(staged_);
    std::for_each(retired_.begin(), retired_.end(), count);
    return use;
}

std::vector<executor::Shape> Follower::staging_shapes() const {
    return staging_ != nullptr ? staging_->shapes : std::vector<executor::Shape>{};
}

// Halves too, where a plan for layers that wait for their own may have some, this one or the next
// that takes its lanes.
std::vector<executor::Shape> Follower::staging_calls() const {
    const auto ranks = static_cast<std::uint32_t>(info_.nranks);
    const bool halves = staging_ != nullptr && staging_->layers && Settings::process().halves() &&
                        ranks == 2 && lanes_.nccl().moves_shards();
    return halves ? executor::with_halves(staging_->shapes, ranks) : staging_shapes();
}

bool Follower::opens_next() const {
    return staging_ != nullptr && staging_->learned && staging_->open && !staging_->opened &&
           !staging_->dropped && !switch_.uses(staged_.get());
}

void Follower::make_ready(JobView& view, const std::function<void()>& before_each) {
    if (staging_ == nullptr) {
        return;
    }
    if (lanes_.untried() && !staging_->opened) {
        inbox_.opened(0, Series::Sums);  // of the staging before, of which nothing comes
        lanes_.abandon_untried();
    }
    if (switch_.trials().ahead()) {
        staging_->since_ns = cuda::host_now();  // the job takes the time that it takes
    }
    const std::int64_t waited = cuda::host_now() - staging_->since_ns;
    if (staging_->dropped || (staging_->discarded && !staging_->open) ||
        std::chrono::nanoseconds(waited) > info_.stage_deadline()) {
        drop_staging();
    } else if (!staging_->learned) {
        learn(view, waited);
    } else if (staging_->opened) {
        watch_trials();
    } else if (staging_->open && !switch_.uses(staged_.get())) {
        const Problem problem = open_lanes(before_each);
        if (!problem.empty() || !lanes_.untried()) {
            finish_staging(problem);
            return;
        }
        staging_->opened = true;
        switch_.trials().forget_launched();
        inbox_.opened(staging_->order.stage, series_of(staging_->shapes.front().function));
        answer(Step::Opened, {});
    }
}

// Nothing comes of it, and nobody is told.
void Follower::drop_staging() {
    staging_.reset();
    inbox_.opened(0, Series::Sums);
    lanes_.abandon_untried();
}

// All ranks launch the trials of the new lanes at one call of the job's. Where the staging was
// given up before, no rank does.
void Follower::watch_trials() {
    const bool alone = closed_ns_ != 0 && cuda::host_now() - closed_ns_ > kLanesGrace;
    if (staging_->discarded && (switch_.trials().drop() || alone)) {
        drop_staging();
        return;
    }
    Problem problem;
    if (lanes_.trials_over(inbox_.patience(), problem)) {
        inbox_.opened(0, Series::Sums);
        finish_staging(problem);
    }
}

// The lanes are there, or `problem` says why not.
void Follower::finish_staging(Problem problem) {
    if (problem.empty()) {
        problem = prepare_executor();
    }
    answer(Step::Ready, problem);
    if (problem.lane != nullptr) {
        lanes_.abort_failed(*problem.lane);
    }
    lanes_.abandon_untried();
}

// The first step: this rank's cycle is the one that the plan is for.
void Follower::learn(JobView& view, std::int64_t waited_ns) {
    if (shares_process_.load(std::memory_order_acquire)) {
        // One thread makes all this process's lanes, and making one waits for all ranks: it would
        // wait for itself.
        const char* const why = "several ranks of this communicator in one process";
        DEFT_WARN_ONCE("no plan is carried out: %s", why);
        answer(Step::Refused, {why, false});
    } else if (std::string shortage = lanes_.shortage(); !shortage.empty()) {
        answer(Step::Refused, {"a lane: " + shortage, true});  // before any rank makes one
    } else if (staging_->late && proof_needed() && !prove_now(view).holds) {
        answer(Step::Refused, {prove_now(view).why, true});
    } else if (staging_->layers && !prove_now(view).layers) {
        answer(Step::Refused, {kLayersDoNotWait, true});
    } else if (view.reason.empty() && rotate_to(view, staging_->order.signature)) {
        staging_->learned = true;
        staging_->shapes = shapes_of(view);
        staging_->marks = marks_of(view);
        answer(Step::Learned, {});
    } else if (waited_ns > kLearnDeadline) {
        answer(Step::Refused,
               {view.reason.empty() ? "another sequence of gradients was learned" : view.reason,
                true});
    }
}

void Follower::answer(Step step, const Problem& problem) {
    Staged staged;
    staged.stage = staging_->order.stage;
    staged.ordinal = switch_.calls();
    staged.step = problem.empty() ? step : problem.lanes_made ? Step::Unfit : Step::Refused;
    staged.may_pass = problem.may_pass;
    staged.timed_out = problem.timed_out;
    staged.reason = problem.why;
    council_.report(encode(staged));
    if (staged.step != Step::Learned && staged.step != Step::Opened) {
        staging_.reset();
    }
}

// The second step: lanes.
Problem Follower::open_lanes(const std::function<void()>& before_each) {
    if (cuda::Execution::get() == nullptr) {
        return {"the CUDA driver lacks functions that plans need", false};
    }
    if (plan_failed_) {
        return {kPlanFailed, false};
    }
    if (const std::string& obstacle = lanes_.obstacle(); !obstacle.empty()) {
        DEFT_WARN_ONCE("no plan is carried out: %s", obstacle.c_str());
        return {obstacle, false};
    }
    // Lanes alone are made to be measured. An order for waiting layers cuts sums into parts, of
    // whose sizes the job makes no sums.
    const bool measure = staging_->order.plan.empty() || staging_->layers;
    return lanes_.open(staging_->order, staging_calls(), measure, in_use(), before_each);
}

// The third: an executor.
Problem Follower::prepare_executor() {
    if (staging_->order.plan.empty()) {
        return {};  // lanes alone, measured: the staging in front of the first plan
    }
    return stage_plan(*cuda::Execution::get(), Settings::process());
}

Problem Follower::stage_plan(const cuda::Execution& driver, const Settings& settings) {
    const Order& order = staging_->order;
    const planner::Plan plan = planner::plan_from_json(order.plan);
    executor::ExecutorOptions options;
    options.first_iteration = order.iterations;
    // Beside a plan in force, which keeps its memory until this one takes over.
    const std::uint64_t held = current_ != nullptr ? current_->script().shadow_bytes : 0;
    options.max_shadow_bytes =
        settings.max_shadow_bytes - std::min(held, settings.max_shadow_bytes);
    Problem problem;
    problem.lanes_made = true;
    if (staging_->discarded) {
        problem.why = "the plan was given up";
        return problem;
    }
    if (!executor::parse_prediction(order.prediction, {}, plan.predicted.max_delay,
                                    plan.predicted.max_merge, options.prediction, problem.why)) {
        return problem;
    }
    // The guard judges by reports of late and merged gradients.
    options.statistics =
        guard_settings().mode != guard::Mode::Off && plan.predicted.late_or_merged();
    const bool lease = guard_settings().mode == guard::Mode::Strict || proof_needed();
    options.lease = (lease && plan.predicted.late_or_merged()) || staging_->layers;
    executor::CompileOptions compile = compile_options(settings, options.prediction);
    // An error of a lane that carries nothing must not become the communicator's.
    compile.lanes = static_cast<std::uint32_t>(std::min(lanes_of(plan), lanes_.size()));
    compile.ranks = static_cast<std::uint32_t>(info_.nranks);
    executor::Script script = executor::compile(plan, staging_->shapes, compile, problem.why);
    if ((staging_->late && proof_needed()) || staging_->layers) {
        script.marks = staging_->marks;
    }
    // The card's memory may come free, the operator's limit does not rise.
    problem.may_pass = problem.empty() && script.shadow_bytes <= options.max_shadow_bytes;
    if (problem.empty()) {
        staged_ = executor::Executor::create(driver, lanes_.nccl(), info_.device,
                                             lanes_.first(compile.lanes), std::move(script),
                                             options, problem.why);
    }
    if (!problem.empty() && held > 0) {
        problem.why += ", beside the plan in force";
    }
    plan_ = plan;
    if (problem.empty() && staged_ == nullptr) {
        problem.why = "no memory";
    }
    if (problem.empty()) {
        staged_plan_ = plan;
        inbox_.stage(order.stage, staged_.get());
    }
    return problem;
}

void Follower::report_measured() {
    if (current_ == nullptr || !council_.open()) {
        return;
    }
    executor::Statistics statistics;
    const bool counts = guard::reports(info_.rank, info_.nranks);
    while (current_->take(statistics)) {
        if (council_.is_leader() || (counts && statistics.complete)) {
            council_.report(guard::encode(statistics));
        }
    }
}

void Follower::report_training() {
    if (!told_proof_ || told_proof_->module == 0 || !council_.open()) {
        return;
    }
    const std::vector<executor::Training> told = take_training(told_proof_->module);
    if (!council_.is_leader() && !guard::reports(info_.rank, info_.nranks)) {
        return;
    }
    for (std::size_t at = 0; at < told.size(); at += guard::kMostTold) {
        const std::size_t count = std::min(told.size() - at, guard::kMostTold);
        council_.report(guard::encode(std::span(told).subspan(at, count)));
    }
}

void Follower::report_pressure() {
    if (current_ == nullptr || !council_.open()) {
        return;
    }
    if (const auto pressure = lanes_.pressure()) {
        council_.report(encode(Pressed{*pressure}));
    }
}

// Where the cycle is not known at the moment, the last proof stands until its module is refused.
Proof Follower::prove_now(const JobView& view) const {
    return view.reason.empty() ? prove(view) : prove_still(told_proof_.value_or(Proof{}));
}

void Follower::report_proof(const JobView& view) {
    if (!proof_told() || !council_.open() || (!told_proof_ && !view.reason.empty())) {
        return;
    }
    Proof proof = prove_now(view);
    if (told_proof_ != proof && council_.report(encode(proof))) {
        told_proof_ = std::move(proof);
    }
}

void Follower::report_kill_switch() {
    const char* const file = KillSwitch::process().pulled();
    const bool on = file != nullptr;
    const std::int64_t now = cuda::host_now();
    // Said again and again: a report may be lost with its connection, and a leader that misses the
    // end would plan nothing any more.
    const bool known = on == halted_ && (halted_ns_ == 0 || now - halted_ns_ < kHaltEvery);
    if (!council_.open() || known || !council_.report(encode(Halted{on}))) {
        return;
    }
    if (on && !halted_) {
        DEFT_INFO("rank %d: the kill switch %s is there", info_.rank, file);
    }
    halted_ = on;
    halted_ns_ = now;
}

void Follower::vouch(const char* why_not) {
    why_not_vouched_ = council_.open() ? why_not : council_.reason();
    const bool proven = !proof_needed() || !in_force_.predicted.late_or_merged() ||
                        current_ == nullptr || (told_proof_ && told_proof_->holds);
    const bool layers = in_force_.barrier == planner::Barrier::Layer && current_ != nullptr;
    if (layers && !(told_proof_ && told_proof_->layers) && why_not_vouched_.empty()) {
        why_not_vouched_ =
            told_proof_ && !told_proof_->why.empty() ? told_proof_->why : kLayersDoNotWait;
    }
    if (!proven && why_not_vouched_.empty()) {
        why_not_vouched_ = told_proof_ ? told_proof_->why : "nothing is proven";
    }
    if (why_not_vouched_.empty() && current_ != nullptr && current_->withheld()) {
        why_not_vouched_ = to_string(executor::BreakReason::Unproven);
    }
    const std::int64_t until = why_not_vouched_.empty() ? cuda::host_now() + kVouchNs : 0;
    for (executor::Executor* const executor : {current_.get(), staged_.get()}) {
        if (executor != nullptr) {
            executor->vouch(until);
        }
    }
}

void Follower::vouch_while_waiting() {
    if (current_ != nullptr && why_not_vouched_.empty()) {
        const std::chrono::nanoseconds most = info_.lane_deadline();
        current_->vouch(cuda::host_now() + most.count() + kVouchNs);
    }
}

std::uint64_t Follower::iteration() const {
    const std::uint64_t length = std::max<std::uint64_t>(plan_.bucket_bytes.size(), 1);
    return switch_.calls() / length;
}

PlanFacts Follower::all_facts() const {
    PlanFacts facts = facts_;
    if (current_ != nullptr) {
        add_counters(*current_, facts);
    }
    return facts;
}

bool Follower::retire_all() noexcept {
    retire(std::move(current_));
    retire(std::move(staged_));
    staging_.reset();
    if (switch_.unreferenced()) {
        free_retired();
        switch_.forget_calls();
    }  // else what that hook uses is left to it, until the background thread finds it gone
    return retired_.empty();
}

void Follower::forget_plans() noexcept {
    plan_ = {};
    staged_plan_ = {};
    in_force_ = {};
}

}  // namespace deft::director
