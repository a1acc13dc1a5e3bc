// SPDX-License-Identifier: Apache-2.0
// Making a plan ready on every rank, in two steps: all ranks say that they have learned the cycle,
// and only then lanes are opened, which waits for every rank. Nothing here changes what happens to
// a call.
#include <algorithm>

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
// Of a whole staging: longer than one lane may take to open and to warm up.
constexpr std::int64_t kStageDeadline = 180 * kSecond;

std::vector<executor::Shape> shapes_of(const JobView& view) {
    std::vector<executor::Shape> shapes;
    for (const Gradient& gradient : view.gradients) {
        shapes.push_back({gradient.count, gradient.type, gradient.op, gradient.in_place});
    }
    return shapes;
}

executor::CompileOptions compile_options(const Settings& settings,
                                         const executor::Prediction& prediction) {
    executor::CompileOptions compile;
    compile.history = prediction.history();
    compile.max_delay = std::max(settings.delay_cap, settings.forced_delay);
    compile.max_merge = std::max(settings.merge_cap, settings.forced_merge);
    compile.residual = settings.mode == ShimMode::Covap;
    compile.delay_half = settings.forced_merge > 0;
    return compile;
}

}  // namespace

// False if DEFT_MAX_SHADOW_BYTES does not allow the leader's plan.
bool Director::has_memory_for(const planner::Plan& plan, const JobView& view) {
    const Settings settings = Settings::process();
    executor::CompileOptions compile = compile_options(settings, choose_prediction(plan));
    compile.lanes = static_cast<std::uint32_t>(lanes_of(plan));
    std::string problem;  // for the staging to tell
    const executor::Script script = executor::compile(plan, shapes_of(view), compile, problem);
    return script.shadow_bytes <= settings.max_shadow_bytes;
}

void Director::answer_stage(Step step, const Problem& problem) {
    Staged staged;
    staged.stage = staging_->order.stage;
    staged.ordinal = switch_.calls();
    staged.step = problem.empty() ? step : problem.lanes_made ? Step::Unfit : Step::Refused;
    staged.may_pass = problem.may_pass;
    staged.reason = problem.why;
    council_.report(encode(staged));
    if (staged.step != Step::Learned) {
        staging_.reset();
    }
}

// What the leader has ordered and has not been answered yet.
void Director::take_orders() {
    std::unique_ptr<executor::Executor> discarded;  // freed when the lock is not held any more
    const std::lock_guard lock(inbox_mutex_);
    const bool arming =
        armed_committed_ || std::any_of(prepared_.begin(), prepared_.end(),
                                        [](const auto& p) { return p.second.kind == Kind::Arm; });
    for (Order& order : orders_) {
        // What has been staged and will not be armed gives its memory back at once: the job may
        // need it, and so may what is staged next.
        const bool over = order.kind == Kind::Stage ||
                          ((order.kind == Kind::Drop || order.kind == Kind::Discard) &&
                           order.stage == staged_ready_);
        if (over && staged_ != nullptr && !arming) {
            staged_ready_ = 0;
            staged_pointer_ = nullptr;
            discarded = std::move(staged_);
        }
        if (order.kind == Kind::Close) {
            keep_lanes_ = std::min<std::size_t>(order.keep, LaneSet::kMost);
        } else if (order.kind == Kind::Stage) {
            staging_ = std::make_unique<Stage>();
            staging_->order = std::move(order);
            staging_->since_ns = cuda::host_now();
        } else if (staging_ != nullptr && order.stage == staging_->order.stage) {
            staging_->dropped = staging_->dropped || order.kind == Kind::Drop;
            staging_->discarded = staging_->discarded || order.kind == Kind::Discard;
            if (order.kind == Kind::Open) {
                staging_->open = true;
                staging_->order.keep = order.keep;
                staging_->order.lanes = std::move(order.lanes);
            }
        }
    }
    orders_.clear();
}

// The next step towards the plan that the leader has sent.
void Director::make_ready(JobView& view) {
    const std::int64_t waited = cuda::host_now() - staging_->since_ns;
    if (staging_->dropped || (staging_->discarded && !staging_->open) || waited > kStageDeadline) {
        staging_.reset();
        return;
    }
    if (!staging_->learned && shares_process_.load(std::memory_order_acquire)) {
        // One thread makes all this process's lanes, and making one waits for all ranks: it would
        // wait for itself.
        const char* const why = "several ranks of this communicator in one process";
        DEFT_WARN_ONCE("no plan is carried out: %s", why);
        answer_stage(Step::Refused, {why, false});
        return;
    }
    if (!staging_->learned) {
        if (view.reason.empty() && turn_to(view, staging_->order.signature)) {
            staging_->learned = true;
            staging_->shapes = shapes_of(view);
            answer_stage(Step::Learned, {});
        } else if (waited > kLearnDeadline) {
            answer_stage(
                Step::Refused,
                {view.reason.empty() ? "another sequence of gradients was learned" : view.reason,
                 true});
        }
        return;
    }
    if (staging_->open && !switch_.uses(staged_.get())) {
        const Problem problem = prepare_executor();
        answer_stage(Step::Ready, problem);
        if (problem.lane != nullptr) {
            lanes_.abort_failed(*problem.lane);
        }
    }
}

// Lanes and an executor.
Problem Director::prepare_executor() {
    const Order& order = staging_->order;
    const cuda::Execution* const driver = cuda::Execution::get();
    if (driver == nullptr) {
        return {"the CUDA driver lacks functions that plans need", false};
    }
    if (plan_failed_) {
        return {kPlanFailed, false};
    }
    if (const std::string& obstacle = lanes_.obstacle(); !obstacle.empty()) {
        DEFT_WARN_ONCE("no plan is carried out: %s", obstacle.c_str());
        return {obstacle, false};
    }
    if (Problem problem =
            lanes_.open(order, staging_->shapes, in_use(), [this] { remember_facts(); });
        !problem.empty()) {
        return problem;
    }
    if (order.plan.empty()) {
        return {};  // lanes alone, measured: the staging in front of the first plan
    }
    const Settings settings = Settings::process();
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
    executor::CompileOptions compile = compile_options(settings, options.prediction);
    // An error of a lane that carries nothing must not become the communicator's.
    compile.lanes = static_cast<std::uint32_t>(std::min(lanes_of(plan), lanes_.size()));
    executor::Script script = executor::compile(plan, staging_->shapes, compile, problem.why);
    // The card's memory may come free, the operator's limit does not rise.
    problem.may_pass = problem.empty() && script.shadow_bytes <= options.max_shadow_bytes;
    if (problem.empty()) {
        staged_ = executor::Executor::create(*driver, lanes_.nccl(), info_.device,
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
        const std::lock_guard lock(inbox_mutex_);
        staged_ready_ = order.stage;
        staged_pointer_ = staged_.get();
        staged_plan_ = plan;
    }
    return problem;
}

bool Director::propose_stage(const JobView& view) {
    agreement::Proposal proposal;
    proposal.serial = next_serial_++;
    proposal.switch_call = kNever;
    Order order;
    order.kind = Kind::Stage;
    order.stage = proposal.serial;
    order.signature = view.signature;
    if (!networks_only_) {
        order.plan = planner::plan_to_json(plan_);
        order.prediction = executor::to_text(choose_prediction(plan_));
        order.iterations =
            facts_.iterations + (current_ != nullptr ? current_->stats().iterations : 0);
    }
    proposal.body = encode(order);
    stage_serial_ = proposal.serial;
    staged_signature_ = view.signature;
    open_proposed_ = false;
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

// All ranks are about to open lanes at once. False: the council is busy.
bool Director::propose_open(Problem& problem) {
    agreement::Proposal proposal;
    proposal.serial = next_serial_;
    proposal.switch_call = kNever;
    Order order;
    order.kind = Kind::Open;
    order.stage = stage_serial_;
    // A plan in force keeps its lanes until this one takes over.
    const std::size_t wanted =
        std::max(networks_only_ ? lanes_.other_networks().size() + 1 : lanes_of(plan_),
                 current_ != nullptr ? current_->lanes() : 0);
    order.keep = current_ != nullptr || (staging_ != nullptr && lanes_.rehearsed(staging_->shapes))
                     ? std::min(agreed_lanes_, wanted)
                     : 0;
    for (std::size_t i = order.keep; i < wanted; ++i) {
        deft_nccl_unique_id_t id{};
        if (info_.table->GetUniqueId == nullptr ||
            info_.table->GetUniqueId(&id) != DEFT_NCCL_SUCCESS) {
            problem = {"NCCL gives no unique id for a lane", true};
            return true;
        }
        order.lanes.push_back(id);
    }
    proposal.body = encode(order);
    if (!council_.propose(std::move(proposal))) {
        return false;
    }
    ++next_serial_;
    wanted_lanes_ = wanted;
    agreed_lanes_ = std::min<std::size_t>(agreed_lanes_, order.keep);
    return true;
}

void Director::watch_staging() {
    Problem refused;
    std::size_t learned = 0;
    std::size_t ready = 0;
    bool lanes_missing = false;
    {
        const std::lock_guard lock(inbox_mutex_);
        for (const auto& [rank, staged] : answers_) {
            if (staged.stage != stage_serial_) {
                continue;
            }
            learned += staged.step == Step::Learned ? 1 : 0;
            ready += staged.step == Step::Ready ? 1 : 0;
            lanes_missing = lanes_missing || staged.step == Step::Refused;
            // One that will not pass is the one to tell.
            if ((staged.step == Step::Refused || staged.step == Step::Unfit) &&
                (refused.empty() || !staged.may_pass)) {
                refused.why = "rank " + std::to_string(rank) + ": " + staged.reason;
                refused.may_pass = staged.may_pass;
            }
        }
        if (refused.empty() && stage_cancelled_) {
            refused = {"a rank did not answer", true};
            lanes_missing = true;
        }
    }
    const auto all = static_cast<std::size_t>(info_.nranks);
    if (refused.empty() && cuda::host_now() - course_since_ns_ > kStageDeadline) {
        refused = {"a rank was not ready in time", true};
        lanes_missing = true;
    }
    if (refused.empty() && !open_proposed_ && learned == all) {
        open_proposed_ = propose_open(refused);
    }
    if (!refused.empty()) {
        give_up_staging(lanes_missing ? Kind::Drop : Kind::Discard);
        if (lanes_missing || !plan_without_memory(refused)) {
            refuse(refused);
        }
    } else if (ready == all) {
        agreed_lanes_ = wanted_lanes_;
        stage_tries_ = 0;
        if (networks_only_) {
            networks_measured();
            return;
        }
        arm_tries_ = 0;
        arm_proposed_ = false;
        enter(Course::Arming);
    }
}

}  // namespace deft::director
