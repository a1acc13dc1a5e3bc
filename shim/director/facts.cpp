// SPDX-License-Identifier: Apache-2.0
// What the report says of the plans of one communicator.
#include <time.h>

#include <algorithm>
#include <utility>

#include "shim/director/director.h"

namespace deft::director {

void Director::note_counters(const executor::Executor& executor) {
    const executor::ExecutorStats stats = executor.stats();
    facts_.iterations += stats.iterations;
    facts_.executed += stats.executed;
    facts_.forwarded += stats.forwarded;
    facts_.launched_bytes += stats.launched_bytes;
    facts_.lane_bytes.resize(
        std::max(facts_.lane_bytes.size(), std::min(executor.lanes(), stats.lane_bytes.size())));
    for (std::size_t i = 0; i < facts_.lane_bytes.size(); ++i) {
        facts_.lane_bytes[i] += stats.lane_bytes[i];
    }
    facts_.delivered += stats.delivered;
    facts_.predicted_deliveries += stats.predicted;
    facts_.zeroed += stats.zeroed;
    facts_.dropped += stats.dropped;
    facts_.shadow_bytes = stats.shadow_bytes;
}

// A look takes well under a millisecond, unless it is at making, measuring or ending lanes, which
// takes as long as the other ranks and the networks want, or is held up inside CUDA. A job may ask
// in every iteration: it hears then what was known after the look before.
PlanFacts Director::facts() noexcept {
    constexpr int kPatience = 20;  // of a tenth of a millisecond
    for (int waited = 0;
         waited < kPatience && !closing_.load(std::memory_order_seq_cst) && !lanes_.opening();
         ++waited) {
        {
            const std::unique_lock lock(work_mutex_, std::try_to_lock);
            if (lock.owns_lock()) {
                return remember_facts();
            }
        }
        const timespec pause{0, 100'000};
        ::nanosleep(&pause, nullptr);
    }
    const std::lock_guard lock(known_mutex_);
    return known_;
}

// With work_mutex_ held.
PlanFacts Director::remember_facts() noexcept {
    PlanFacts facts = collect_facts();
    try {
        const std::lock_guard lock(known_mutex_);
        known_ = facts;
    } catch (...) {
    }
    return facts;
}

void Director::describe_plan(PlanFacts& facts) const {
    // One that is to take its place may still come to nothing.
    const planner::Plan& plan = current_ != nullptr ? in_force_ : plan_;
    const planner::Prediction& predicted = plan.predicted;
    facts.policy = plan.policy;
    facts.predicted_ms = predicted.iteration * 1e3;
    facts.baseline_ms = predicted.baseline * 1e3;
    facts.bound_ms = predicted.bound * 1e3;
    facts.updates = predicted.updates;
    facts.max_delay = predicted.max_delay;
    facts.max_merge = predicted.max_merge;
    facts.before_ms = before_ms_;
    facts.period = plan.period;
    for (const double start : predicted.cycles) {
        facts.cycles_ms.push_back(start * 1e3);
    }
    for (const planner::Transfer& transfer : plan.transfers) {
        if (facts.transfers.size() < PlanFacts::kListed) {
            facts.transfers.push_back(
                {transfer.bucket, transfer.link, transfer.start * 1e3, transfer.finish * 1e3});
        }
    }
    facts.guard_decisions = guard_ != nullptr ? guard_->decisions() : 0;
}

PlanFacts Director::collect_facts() noexcept {
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
        if (!plans_forgotten_) {
            describe_plan(facts);
        }
    } catch (...) {
    }
    return facts;
}

}  // namespace deft::director
