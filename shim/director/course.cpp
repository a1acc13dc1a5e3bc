// SPDX-License-Identifier: Apache-2.0
// The background thread's side of the director: from a learned cycle to a plan in force.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "shim/cuda/event_pool.h"
#include "shim/director/director.h"
#include "shim/director/settings.h"
#include "shim/planner/plan_json.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// A rank that has not learned the cycle by then is in another one.
constexpr std::int64_t kLearnDeadline = 20 * kSecond;
constexpr std::int64_t kStageDeadline = 180 * kSecond;
constexpr std::int64_t kArmDeadline = 30 * kSecond;
constexpr std::uint64_t kArmTries = 5;
// The switch lies this far ahead of the rank that is furthest.
constexpr double kSwitchAheadMs = 500;
constexpr std::uint64_t kSwitchAheadIterations = 3;
// Iterations measured before and after, and by how much a plan must not be slower.
constexpr std::uint64_t kGainIterations = 40;
constexpr double kLoss = 0.02;
// A job whose cycle ends this often is left alone.
constexpr std::uint64_t kMaxBreaks = 20;
constexpr std::size_t kMaxPlans = 16;  // remembered

std::vector<executor::Shape> shapes_of(const JobView& view) {
    std::vector<executor::Shape> shapes;
    for (const Gradient& gradient : view.gradients) {
        shapes.push_back({gradient.count, gradient.type, gradient.op});
    }
    return shapes;
}

}  // namespace

bool Director::tick(Track& track) noexcept {
    const std::unique_lock lock(work_mutex_, std::try_to_lock);
    if (!lock.owns_lock() || ended() || council_.verdict() != agreement::Verdict::On) {
        return false;
    }
    try {
        step(track);
    } catch (const std::exception& error) {
        say(error.what());
        enter(Course::Resting);
    } catch (...) {
        enter(Course::Resting);
    }
    return staging_ != nullptr || course_ == Course::Staging || course_ == Course::Arming;
}

void Director::say(const char* why) {
    if (said_ != why) {
        said_ = why;
        DEFT_INFO("rank %d: nothing is planned: %s", seat_.rank, why);
    }
}

void Director::enter(Course course) {
    course_ = course;
    course_since_ns_ = cuda::host_now();
}

void Director::step(Track& track) {
    settle(track);
    {
        const std::lock_guard lock(inbox_mutex_);
        if (!orders_.empty()) {
            staging_ = std::make_unique<Stage>();
            staging_->order = std::move(orders_.back());
            staging_->since_ns = cuda::host_now();
            orders_.clear();
        }
    }
    JobView view = view_job(track, false);
    if (view.reason.empty() && view.serial != seat_.serial) {
        view.reason = "the gradients travel over another communicator";
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

// Takes note of what hooks and council have done since the last time.
void Director::settle(Track& track) {
    bool armed = false;
    bool forward = false;
    {
        const std::lock_guard lock(inbox_mutex_);
        armed = armed_committed_;
        forward = forward_committed_;
    }
    executor::Executor* const active = active_.load(std::memory_order_seq_cst);
    const bool switched = switch_at_.load(std::memory_order_seq_cst) == kNever;
    if (armed && switched && staged_ != nullptr && active == staged_.get()) {
        retire(std::move(current_));
        current_ = std::move(staged_);
        const std::lock_guard lock(inbox_mutex_);
        armed_committed_ = false;
        staged_ready_ = 0;
        staged_pointer_ = nullptr;
        track.restart_profile();
        gain_checked_ = false;
        enter(Course::Running);
        ++facts_.switched;
        if (council_.is_leader() && guard_settings().mode != guard::Mode::Off &&
            shim_mode() >= ShimMode::Deft) {
            if (guard_ == nullptr) {
                guard_ = std::make_unique<guard::Guard>(guard_settings(), seat_.nranks);
            }
            guard_->plan_in_force(plan_, iteration());
        }
        DEFT_INFO("rank %d: plan in force", seat_.rank);
    } else if (forward && switched && active == nullptr) {
        retire(std::move(current_));
        const std::lock_guard lock(inbox_mutex_);
        forward_committed_ = false;
        track.restart_profile();
        enter(falling_ ? Course::Fallen : Course::Resting);
        falling_ = false;
        DEFT_INFO("rank %d: calls are forwarded again", seat_.rank);
    }
    if (current_ != nullptr && current_->broken() && active == current_.get()) {
        executor::Executor* expected = current_.get();
        if (active_.compare_exchange_strong(expected, nullptr, std::memory_order_seq_cst)) {
            DEFT_INFO("rank %d: the plan has ended (%s); calls are forwarded and learned again",
                      seat_.rank, to_string(current_->why()));
            // One that the job itself has asked for is no change of its iteration.
            const bool asked = current_->why() == executor::BreakReason::Stopped;
            breaks_ += asked ? 0 : 1;
            facts_.ended += asked ? 0 : 1;
            retire(std::move(current_));
            planned_signature_ = 0;
            enter(breaks_ < kMaxBreaks ? Course::Watching : Course::Resting);
            if (breaks_ == kMaxBreaks) {
                say("the job's iteration changes too often");
            }
        }
    }
    // What a hook may still hold is freed when none is inside: it was taken from active_ before.
    if (!retired_.empty() && inside_.load(std::memory_order_seq_cst) == 0) {
        retired_.clear();
    }
}

void Director::note_counters(const executor::Executor& executor) {
    const executor::ExecutorStats stats = executor.stats();
    facts_.iterations += stats.iterations;
    facts_.executed += stats.executed;
    facts_.forwarded += stats.forwarded;
    facts_.launched_bytes += stats.launched_bytes;
    facts_.delivered += stats.delivered;
    facts_.predicted_deliveries += stats.predicted;
    facts_.zeroed += stats.zeroed;
    facts_.dropped += stats.dropped;
    facts_.shadow_bytes = stats.shadow_bytes;
}

PlanFacts Director::facts() noexcept {
    const std::lock_guard lock(work_mutex_);
    PlanFacts facts = facts_;
    try {
        if (current_ != nullptr) {
            note_counters(*current_);
            std::swap(facts, facts_);
        }
        constexpr const char* kCourses[] = {"watching", "staging", "arming",
                                            "running",  "fallen",  "resting"};
        facts.state = council_.verdict() == agreement::Verdict::Pending ? "agreeing"
                      : council_.verdict() == agreement::Verdict::Off   ? "no agreement"
                      : current_ != nullptr                             ? "running"
                      : staging_ != nullptr                             ? "staging"
                                            : kCourses[static_cast<std::size_t>(course_)];
        facts.reason = council_.verdict() == agreement::Verdict::Off ? council_.reason()
                       : current_ != nullptr                         ? ""
                                                                     : said_;
        const planner::Prediction& predicted = plan_.predicted;
        facts.policy = plan_.policy;
        facts.predicted_ms = predicted.iteration * 1e3;
        facts.baseline_ms = predicted.baseline * 1e3;
        facts.bound_ms = predicted.bound * 1e3;
        facts.updates = predicted.updates;
        facts.max_delay = predicted.max_delay;
        facts.max_merge = predicted.max_merge;
        facts.before_ms = before_ms_;
        facts.period = plan_.period;
        for (const double start : predicted.cycles) {
            facts.cycles_ms.push_back(start * 1e3);
        }
        for (const planner::Transfer& transfer : plan_.transfers) {
            if (facts.transfers.size() < PlanFacts::kListed) {
                facts.transfers.push_back(
                    {transfer.bucket, transfer.link, transfer.start * 1e3, transfer.finish * 1e3});
            }
        }
        facts.guard_decisions = guard_ != nullptr ? guard_->decisions() : 0;
    } catch (...) {
    }
    return facts;
}

void Director::retire(std::unique_ptr<executor::Executor> old) {
    if (old != nullptr) {
        note_counters(*old);
        facts_.dropped += old->in_flight();
        retired_.push_back(std::move(old));
    }
}

void Director::answer_stage(bool ready, const std::string& reason) {
    Staged staged;
    staged.stage = staging_->order.stage;
    staged.ordinal = ordinal_.load(std::memory_order_seq_cst);
    staged.ready = ready;
    staged.reason = reason;
    council_.report(encode(staged));
    staging_.reset();
}

// Lanes and an executor for the plan that the leader has sent.
void Director::make_ready(const JobView& view) {
    const Order& order = staging_->order;
    if (!view.reason.empty() || view.signature != order.signature) {
        if (cuda::host_now() - staging_->since_ns > kLearnDeadline) {
            answer_stage(false, view.reason.empty() ? "another sequence of gradients was learned"
                                                    : view.reason);
        }
        return;
    }
    std::string problem;
    const cuda::Execution* const driver = cuda::Execution::get();
    if (driver == nullptr) {
        answer_stage(false, "the CUDA driver lacks functions that plans need");
        return;
    }
    if (!open_lanes(order, problem)) {
        answer_stage(false, problem);
        return;
    }
    const Settings settings = Settings::process();
    const planner::Plan plan = planner::plan_from_json(order.plan);
    executor::ExecutorOptions options;
    options.max_shadow_bytes = settings.max_shadow_bytes;
    options.prediction = choose_prediction(plan);
    options.statistics =
        settings.mode >= ShimMode::Deft && guard_settings().mode != guard::Mode::Off;
    executor::CompileOptions compile;
    compile.lanes = static_cast<std::uint32_t>(lanes_.size());
    compile.history = options.prediction.history();
    compile.max_delay = std::max(settings.max_delay, settings.forced_delay);
    compile.max_merge = std::max(settings.max_merge, settings.forced_merge);
    compile.residual = settings.mode == ShimMode::Covap;
    executor::Script script = executor::compile(plan, shapes_of(view), compile, problem);
    std::vector<executor::Lane*> lanes;
    for (const auto& lane : lanes_) {
        lanes.push_back(lane.get());
    }
    if (problem.empty()) {
        staged_ = executor::Executor::create(*driver, nccl_, seat_.device, std::move(lanes),
                                             std::move(script), options, problem);
    }
    const std::uint64_t serial = order.stage;
    const bool ready = problem.empty() && staged_ != nullptr;
    plan_ = plan;
    if (ready) {
        const std::lock_guard lock(inbox_mutex_);
        staged_ready_ = serial;
        staged_pointer_ = staged_.get();
    }
    answer_stage(ready, problem);
}

bool Director::open_lanes(const Order& order, std::string& problem) {
    const cuda::Execution* const driver = cuda::Execution::get();
    for (const deft_nccl_unique_id_t& id : order.lanes) {
        if (lanes_.size() == kMaxLanes) {
            problem = "too many lanes";
            return false;
        }
        auto lane = std::make_unique<executor::Lane>(nccl_, *driver, seat_.device);
        opening_.store(lane.get(), std::memory_order_seq_cst);
        const bool open =
            !ended() && lane->open(id, seat_.nranks, seat_.rank, executor::LaneConfig{}, problem) &&
            lane->warm_up(problem);
        opening_.store(nullptr, std::memory_order_seq_cst);
        if (!open) {
            lane->abort();
            (void)lane.release();  // end() may be aborting it at this moment
            return false;
        }
        published_lanes_[lanes_.size()].store(lane.get(), std::memory_order_seq_cst);
        lanes_.push_back(std::move(lane));
    }
    return true;
}

void Director::lead(Track& track, const JobView& view) {
    switch (course_) {
        case Course::Watching:
            if (!view.reason.empty()) {
                if (view.learned) {
                    say(view.reason.c_str());
                }
            } else if (view.signature != planned_signature_ && decide(track, view) &&
                       !propose_stage(view)) {
                planned_signature_ = 0;  // the council is busy: try again
            }
            break;
        case Course::Staging:
            watch_staging();
            break;
        case Course::Arming:
            propose_arm(view);
            break;
        case Course::Running:
            check_gain(track, view);
            watch_accuracy(view);
            break;
        case Course::Fallen:
            watch_accuracy(view);
            break;
        case Course::Resting:
            break;
    }
}

// True if there is a plan worth carrying out.
bool Director::decide(const Track& track, const JobView& view) {
    if (const auto known = plans_.find(view.signature); known != plans_.end()) {
        // The cycle was interrupted and has come back. Its times are those under the plan now.
        planned_signature_ = view.signature;
        plan_ = known->second.plan;
        before_ms_ = known->second.before_ms;
        return true;
    }
    if (!view.measured) {
        return false;
    }
    planned_signature_ = view.signature;
    profile_ = view_job(track, true).profile;
    std::string note;
    plan_ = choose_plan(profile_, Settings::process(), note);
    before_ms_ = profile_.iteration.median * 1e3;
    if (plan_.predicted.verdict != planner::Verdict::Use) {
        DEFT_INFO("do nothing: no plan gains more than the noise (%s)", note.c_str());
        return false;
    }
    DEFT_INFO("plan: %s", note.c_str());
    if (plans_.size() < kMaxPlans) {
        plans_[view.signature] = {plan_, before_ms_};
    }
    return true;
}

bool Director::propose_stage(const JobView& view) {
    agreement::Proposal proposal;
    proposal.serial = next_serial_++;
    proposal.switch_call = kNever;
    Order order;
    order.kind = Kind::Stage;
    order.stage = proposal.serial;
    order.signature = view.signature;
    order.plan = planner::plan_to_json(plan_);
    const std::size_t wanted = std::max<std::size_t>(plan_.links.size(), 1);
    for (std::size_t i = lanes_.size(); i < wanted; ++i) {
        deft_nccl_unique_id_t id{};
        if (seat_.table->GetUniqueId == nullptr ||
            seat_.table->GetUniqueId(&id) != DEFT_NCCL_SUCCESS) {
            say("NCCL gives no unique id for a lane");
            enter(Course::Resting);
            return true;
        }
        order.lanes.push_back(id);
    }
    proposal.body = encode(order);
    stage_serial_ = proposal.serial;
    {
        const std::lock_guard lock(inbox_mutex_);
        answers_.clear();
        stage_cancelled_ = false;
    }
    if (!council_.propose(std::move(proposal))) {
        return false;
    }
    enter(Course::Staging);
    return true;
}

void Director::watch_staging() {
    std::string refused;
    std::size_t ready = 0;
    {
        const std::lock_guard lock(inbox_mutex_);
        for (const auto& [rank, staged] : answers_) {
            if (staged.stage != stage_serial_) {
                continue;
            }
            if (staged.ready) {
                ++ready;
            } else if (refused.empty()) {
                refused = "rank " + std::to_string(rank) + ": " + staged.reason;
            }
        }
        if (stage_cancelled_) {
            refused = "a rank did not answer";
        }
    }
    if (refused.empty() && cuda::host_now() - course_since_ns_ > kStageDeadline) {
        refused = "a rank was not ready in time";
    }
    if (!refused.empty()) {
        say(refused.c_str());
        enter(Course::Watching);
    } else if (ready == static_cast<std::size_t>(seat_.nranks)) {
        arm_tries_ = 0;
        arm_proposed_ = false;
        enter(Course::Arming);
    }
}

// The start of an iteration far enough ahead of every rank.
std::uint64_t Director::switch_call(const JobView& view, std::uint64_t not_before) {
    const std::uint64_t length = view.gradients.size();
    std::uint64_t furthest = ordinal_.load(std::memory_order_seq_cst);
    {
        const std::lock_guard lock(inbox_mutex_);
        for (const auto& [rank, staged] : answers_) {
            furthest = std::max(furthest, staged.ordinal);
        }
    }
    const double iteration_ms = std::max(before_ms_, 0.1);
    const std::uint64_t ahead =
        kSwitchAheadIterations + static_cast<std::uint64_t>(kSwitchAheadMs / iteration_ms);
    const std::uint64_t from = std::max(furthest + (ahead << arm_tries_) * length, not_before);
    const std::uint64_t past = from > view.start ? from - view.start : 0;
    return view.start + (past + length - 1) / length * length;
}

void Director::propose_arm(const JobView& view) {
    {
        const std::lock_guard lock(inbox_mutex_);
        if (armed_committed_) {
            return;  // settle() sees it come into force
        }
        if (arm_proposed_ && !arm_cancelled_) {
            return;
        }
        arm_cancelled_ = false;
    }
    if (arm_proposed_) {
        ++arm_tries_;
        arm_proposed_ = false;
    }
    if (arm_tries_ >= kArmTries || !view.reason.empty() ||
        cuda::host_now() - course_since_ns_ > kArmDeadline) {
        say(view.reason.empty() ? "the ranks did not agree on a call to switch at"
                                : view.reason.c_str());
        planned_signature_ = 0;
        enter(++breaks_ < kMaxBreaks ? Course::Watching : Course::Resting);
        return;
    }
    agreement::Proposal proposal;
    proposal.serial = next_serial_++;
    proposal.switch_call = switch_call(view, Settings::process().warm_up * view.gradients.size());
    Order order;
    order.kind = Kind::Arm;
    order.stage = stage_serial_;
    order.signature = view.signature;
    proposal.body = encode(order);
    arm_proposed_ = council_.propose(std::move(proposal));
}

// Iterations of the job so far, by the calls of the plan's cycle.
std::uint64_t Director::iteration() const {
    const std::uint64_t length = std::max<std::uint64_t>(plan_.bucket_bytes.size(), 1);
    return ordinal_.load(std::memory_order_seq_cst) / length;
}

bool Director::propose_forward(const JobView& view) {
    if (!view.reason.empty()) {
        return false;
    }
    agreement::Proposal proposal;
    proposal.serial = next_serial_++;
    proposal.switch_call = switch_call(view, 0);
    Order order;
    order.kind = Kind::Forward;
    proposal.body = encode(order);
    return council_.propose(std::move(proposal));
}

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
        gain_checked_ = true;
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
        plan_ = choose_plan(profile_, settings, note);
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
