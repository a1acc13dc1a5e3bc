// SPDX-License-Identifier: Apache-2.0
#include "shim/control/lane_set.h"

#include <strings.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/presence.h"
#include "shim/control/networks.h"
#include "shim/cuda/event_pool.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

constexpr char kDeft[] = "deft";  // NCCL's name for this library's network

// Links that the job's own network needs carry for those of deft's lanes.
bool on_reserve() {
    return Presence::process().on_reserve.load(std::memory_order_relaxed) > 0;
}

// In the order of the gradients, which is the same on all ranks.
std::vector<executor::Reduction> kinds_of(const std::vector<executor::Shape>& shapes) {
    std::vector<executor::Reduction> kinds;
    for (const executor::Shape& shape : shapes) {
        if (shape.count == 0) {
            continue;
        }
        const executor::Reduction kind{shape.type, shape.op, shape.bytes() / shape.count,
                                       shape.function};
        if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
            kinds.push_back(kind);
        }
    }
    return kinds;
}

// Of all ranks.
std::size_t largest_of(const std::vector<executor::Shape>& shapes, int ranks) {
    std::size_t largest = 0;
    for (const executor::Shape& shape : shapes) {
        const auto parts = static_cast<std::size_t>(moves_shards(shape.function) ? ranks : 1);
        largest = std::max<std::size_t>(largest, shape.bytes() * parts);
    }
    return largest;
}

}  // namespace

LaneSet::LaneSet(const CommunicatorInfo& info, PlanSwitch& plan_switch)
    : info_(info),
      switch_(plan_switch),
      nccl_(executor::Nccl::from(*info.table)),
      other_networks_(networks_to_use(info)),
      obstacle_(why_no_lanes(Surroundings::process(nccl_.version))),
      memory_(info.device) {
    switch_.trials().attach([this] { launch_trials(); });
}

Problem LaneSet::open(const Order& order, const std::vector<executor::Shape>& shapes, bool measure,
                      const InUse& in_use, const std::function<void()>& before_each) {
    // The lanes of a staging that failed on another rank have no partner there.
    end_from(order.keep, in_use);
    close_idle(in_use);
    if (!closing_.empty() && !order.lanes.empty()) {
        return {"lanes of the last plan are still in use", true};
    }
    if (lanes_.size() < order.keep) {
        return {"a lane is missing", false};
    }
    for (const auto& lane : lanes_) {
        if (const int error = lane->error(); error != DEFT_NCCL_SUCCESS) {
            return {std::string("a lane has failed: ") + nccl_.text(error), true};
        }
        if (!lane->ready()) {
            return {"a lane was ended", true};
        }
    }
    if (lanes_.size() + order.lanes.size() > other_networks_.size() + 1) {
        return {"DEFT_LANES has no effect on this rank", false};  // it has said why
    }
    executor::LaneConfig config;
    config.priority = switch_.stream_priority();
    memory_.begin();
    for (const deft_nccl_unique_id_t& id : order.lanes) {
        if (Problem problem = open_one(id, order, shapes, measure, config, before_each);
            !problem.empty()) {
            return problem;
        }
    }
    if (untried()) {
        rehearsed_ = kinds_of(shapes);  // those that are kept have been through it too
        rehearsed_bytes_ = largest_of(shapes, info_.nranks);
    }
    return {};
}

// Of the next lane: the job's own network is the first.
Problem LaneSet::configure(executor::LaneConfig& config) const {
    const std::size_t network = lanes_.size() + new_lanes_.size();
    const Settings settings = Settings::process();
    config.net_name = network == 0 ? info_.network : other_networks_[network - 1].c_str();
    const bool deft = config.net_name != nullptr && ::strcasecmp(config.net_name, kDeft) == 0;
    if (deft) {
        if (Presence::process().plugin_declined.load(std::memory_order_acquire)) {
            return {"NCCL has switched deft's plugin off in this process (see above)", false};
        }
        Presence::process().lanes_on_deft.store(true, std::memory_order_release);
    }
    config.deadline = info_.lane_deadline();
    config.traffic_class = deft ? kLaneTrafficClass : -1;
    if (network == 0) {
        config.job = info_.choices;
    } else {
        // The rest is about the GPUs' kernels and links, and chosen for another network.
        config.job.traffic_class = info_.choices.traffic_class;
    }
    config.max_ctas = network == 0 ? settings.own_lane_ctas : settings.lane_ctas;
    return {};
}

Problem LaneSet::open_one(const deft_nccl_unique_id_t& id, const Order& order,
                          const std::vector<executor::Shape>& shapes, bool measure,
                          executor::LaneConfig config, const std::function<void()>& before_each) {
    if (Problem problem = configure(config); !problem.empty()) {
        return problem;
    }
    if (std::string why = memory_.obstacle(new_lanes_.size()); !why.empty()) {
        return {"a lane: " + why, true};
    }
    auto lane = std::make_unique<executor::Lane>(nccl_, *cuda::Execution::get(), info_.device);
    const executor::Trials trials{kinds_of(shapes), largest_of(shapes, info_.nranks), measure};
    Problem problem;
    before_each();
    opening_stage_.store(order.stage, std::memory_order_seq_cst);
    opening_.store(lane.get(), std::memory_order_seq_cst);
    const bool open = !switch_.ended() && !leaving_off() &&
                      dropped_stage_.load(std::memory_order_seq_cst) != order.stage &&
                      lane->open(id, info_.nranks, info_.rank, config, problem.why) &&
                      lane->prepare_trials(trials, problem.why) && lane->connect(problem.why);
    if (open) {  // an abort finds it here or there
        untried_[new_lanes_.size()].store(lane.get(), std::memory_order_seq_cst);
    }
    opening_.store(nullptr, std::memory_order_seq_cst);
    if (!open) {
        return failed_to_open(std::move(lane), std::move(problem));
    }
    new_lanes_.push_back(std::move(lane));
    return {};
}

// A hook, at the call of the job's that all ranks have agreed on.
void LaneSet::launch_trials() noexcept {
    launching_ns_.store(cuda::host_now(), std::memory_order_release);
    // All of them now: while one is stuck inside NCCL, others may be made for a later call.
    std::array<executor::Lane*, kMost> lanes{};
    std::transform(untried_.begin(), untried_.end(), lanes.begin(),
                   [](const auto& lane) { return lane.load(std::memory_order_seq_cst); });
    cuda::Event before = nullptr;
    for (executor::Lane* const lane : lanes) {
        if (lane != nullptr && !leaving_off()) {
            before = lane->launch_trials(before);
        }
    }
    launching_ns_.store(0, std::memory_order_release);
}

bool LaneSet::held_up(std::chrono::nanoseconds patience) const noexcept {
    const std::int64_t since = launching_ns_.load(std::memory_order_acquire);
    return since != 0 && std::chrono::nanoseconds(cuda::host_now() - since) > patience;
}

bool LaneSet::trials_over(std::chrono::nanoseconds patience, Problem& problem) {
    if (held_up(patience)) {
        problem = {"NCCL took too long to connect a lane", true};
        problem.timed_out = true;
        return true;
    }
    if (launching_ns_.load(std::memory_order_acquire) != 0) {
        return false;  // the next lane's trials wait for an event of the last one's
    }
    bool over = true;
    new_speeds_.resize(new_lanes_.size());
    for (std::size_t i = 0; i < new_lanes_.size(); ++i) {
        executor::Lane& lane = *new_lanes_[i];
        const executor::TrialState state = lane.trials() == executor::TrialState::Good
                                               ? executor::TrialState::Good
                                               : lane.look_at_trials(new_speeds_[i], problem.why);
        if (state == executor::TrialState::Refused || lane.comm() == nullptr) {
            const std::size_t network = lanes_.size() + i;
            problem.why =
                (network > 0 ? "a lane over " + other_networks_[network - 1] + ": " : "") +
                (problem.empty() ? "it was ended" : problem.why);
            problem.may_pass = true;
            problem.timed_out = lane.timed_out();
            DEFT_INFO("rank %d: no lane: %s", info_.rank, problem.why.c_str());
            return true;
        }
        over = over && state == executor::TrialState::Good;
    }
    if (over && lanes_.size() + new_lanes_.size() > 1 && on_reserve()) {
        problem = {"the links of a second network are dead", true};
        return true;
    }
    if (over) {
        publish();
    }
    return over;
}

void LaneSet::publish() noexcept {
    memory_.note_made(new_lanes_.size());
    for (std::size_t i = 0; i < new_lanes_.size(); ++i) {
        untried_[i].store(nullptr, std::memory_order_seq_cst);
        published_[lanes_.size()].store(new_lanes_[i].get(), std::memory_order_seq_cst);
        speeds_.push_back(new_speeds_[i]);
        lanes_.push_back(std::move(new_lanes_[i]));
    }
    new_lanes_.clear();
    new_speeds_.clear();
}

void LaneSet::abandon_untried() noexcept {
    switch_.trials().drop();
    for (std::size_t i = 0; i < new_lanes_.size(); ++i) {
        untried_[i].store(nullptr, std::memory_order_seq_cst);
        if (!leaving_off()) {
            begin_abort(*new_lanes_[i]);
        }
        ended_.push_back(std::move(new_lanes_[i]));  // a hook may be at it
    }
    new_lanes_.clear();
}

Problem LaneSet::failed_to_open(std::unique_ptr<executor::Lane> lane, Problem problem) {
    // NCCL's abort may wait for ranks that go on making it as long as they know nothing.
    problem.lane = lane.get();
    ended_.push_back(std::move(lane));  // abort_opening(), drop_stage() may be at it right now
    if (problem.empty()) {
        problem.why = "the others gave up";
    }
    problem.may_pass = true;
    problem.timed_out = problem.lane->timed_out();
    const std::size_t network = lanes_.size() + new_lanes_.size();
    if (network > 0) {
        problem.why = "a lane over " + other_networks_[network - 1] + ": " + problem.why;
    }
    DEFT_INFO("rank %d: no lane: %s", info_.rank, problem.why.c_str());
    return problem;
}

std::vector<executor::Lane*> LaneSet::first(std::size_t count) const {
    std::vector<executor::Lane*> lanes;
    for (std::size_t i = 0; i < count; ++i) {
        lanes.push_back(lanes_[i].get());
    }
    return lanes;
}

// NCCL connects a communicator for an algorithm when it is first used (2.22): in the job's call, if
// a lane has not been through what this cycle sums.
bool LaneSet::rehearsed(const std::vector<executor::Shape>& shapes) const {
    const std::vector<executor::Reduction> kinds = kinds_of(shapes);
    const auto rehearsed = [this](const executor::Reduction& kind) {
        return std::find(rehearsed_.begin(), rehearsed_.end(), kind) != rehearsed_.end();
    };
    return !kinds.empty() && largest_of(shapes, info_.nranks) <= rehearsed_bytes_ &&
           std::all_of(kinds.begin(), kinds.end(), rehearsed);
}

// A lane that was in a plan in force, or will be on this rank, may be at the last transfers of it
// here and with others: it is closed when they are over. So may be one over which the ranks have
// asked each other: an abort here would cost another rank the answer, and its communicator. What
// becomes of any other concerns nobody.
void LaneSet::end_from(std::size_t keep, const InUse& in_use) {
    while (lanes_.size() > keep) {
        std::unique_ptr<executor::Lane> lane = std::move(lanes_.back());
        lanes_.pop_back();
        if (lanes_.size() < switch_.used_lanes() || in_use.staged || lane->asked()) {
            closing_.push_back(std::move(lane));
            continue;
        }
        withdraw(*lane);
        lane->abort();
        ended_.push_back(std::move(lane));  // a hook may be asking it for its errors
    }
    speeds_.resize(std::min(speeds_.size(), lanes_.size()));
}

// Its kernel would stay on the device for as long as the communicator, and an idle lane waits for
// it.
void LaneSet::end_doubted() {
    for (const auto* lanes : {&lanes_, &closing_}) {
        for (const auto& lane : *lanes) {
            if (!aborting() && lane->comm() != nullptr && lane->casts_alone()) {
                DEFT_INFO("rank %d: a lane is ended on which no other rank answers", info_.rank);
                begin_abort(*lane);
            }
        }
    }
}

void LaneSet::close_idle(const InUse& in_use) {
    for (const auto& lane : ended_) {
        lane->free_trials();
    }
    if (closing_.empty() || in_use.lanes > lanes_.size()) {
        return;
    }
    while (!closing_.empty() && !aborting() && closing_.back()->idle()) {
        executor::Lane& lane = *closing_.back();
        switch_.keep_lanes(lanes_.size() + closing_.size() - 1);
        withdraw(lane);
        lane.disconnect();
        ended_.push_back(std::move(closing_.back()));
        closing_.pop_back();
    }
}

// No hook asks it for its errors any more.
void LaneSet::withdraw(const executor::Lane& lane) noexcept {
    for (auto& published : published_) {
        if (published.load(std::memory_order_seq_cst) == &lane) {
            published.store(nullptr, std::memory_order_seq_cst);
        }
    }
    DEFT_INFO("rank %d: a lane is closed that no plan uses", info_.rank);
}

std::optional<Pressure> LaneSet::pressure() noexcept {
    constexpr std::int64_t kFlap = 3'000'000'000;  // a link that is back so soon was no loss
    const std::int64_t now = cuda::host_now();
    const bool asked_lately = now - std::exchange(pressure_asked_ns_, now) < kFlap;
    on_reserve_ns_ = !on_reserve() ? 0 : on_reserve_ns_ != 0 && asked_lately ? on_reserve_ns_ : now;
    if (lanes_.empty()) {
        return {};
    }
    if (lanes_.size() > 1 && on_reserve_ns_ != 0 && now - on_reserve_ns_ > kFlap) {
        return Pressure::Network;
    }
    return memory_.pressed() ? std::optional(Pressure::Memory) : std::nullopt;
}

int LaneSet::merge_async_error(int error) noexcept {
    const HookRef reference = switch_.reference();
    const std::size_t used = switch_.used_lanes();
    const std::size_t active = switch_.active_lanes();
    const bool finalizing = finalizing_.load(std::memory_order_acquire);
    bool busy = false;
    for (std::size_t i = 0; i < used; ++i) {
        if (executor::Lane* const lane = published_[i].load(std::memory_order_seq_cst)) {
            const int own = lane->async_error();
            const bool failed = own != DEFT_NCCL_SUCCESS && own != DEFT_NCCL_IN_PROGRESS;
            // Of a plan that is over and whose transfers are through, it concerns nobody any more.
            if (failed && (i < active || lane->busy())) {
                tell_failed(i, own);
                return own;
            }
            busy = busy || (finalizing && lane->busy());
        }
    }
    return busy ? DEFT_NCCL_IN_PROGRESS : error;
}

void LaneSet::tell_failed(std::size_t lane, int error) noexcept {
    if (lane > 0 && lane <= other_networks_.size() && !failed_told_.exchange(true)) {
        DEFT_WARN(
            "rank %d: a second network has failed under a plan (%s: %s); the error is the "
            "communicator's, because sums are lost. DEFT_LANES=none does without it",
            info_.rank, other_networks_[lane - 1].c_str(), nccl_.text(error));
    }
}

}  // namespace deft::director
