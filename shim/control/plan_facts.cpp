// SPDX-License-Identifier: Apache-2.0
#include "shim/control/plan_facts.h"

#include <algorithm>

namespace deft::director {

void add_counters(const executor::Executor& executor, PlanFacts& facts) {
    const executor::ExecutorStats stats = executor.stats();
    facts.iterations += stats.iterations;
    facts.executed += stats.executed;
    facts.forwarded += stats.forwarded;
    facts.launched_bytes += stats.launched_bytes;
    facts.lane_bytes.resize(
        std::max(facts.lane_bytes.size(), std::min(executor.lanes(), stats.lane_bytes.size())));
    for (std::size_t i = 0; i < facts.lane_bytes.size(); ++i) {
        facts.lane_bytes[i] += stats.lane_bytes[i];
    }
    facts.delivered += stats.delivered;
    facts.predicted_deliveries += stats.predicted;
    facts.zeroed += stats.zeroed;
    facts.dropped += stats.dropped;
    facts.shadow_bytes = stats.shadow_bytes;
}

void describe(const planner::Plan& plan, PlanFacts& facts) {
    const planner::Prediction& predicted = plan.predicted;
    facts.policy = plan.name();
    facts.predicted_ms = predicted.iteration * 1e3;
    facts.baseline_ms = predicted.baseline * 1e3;
    facts.bound_ms = predicted.bound * 1e3;
    facts.updates = predicted.updates;
    facts.late = predicted.late;
    facts.progress = predicted.progress;
    facts.max_delay = predicted.max_delay;
    facts.max_merge = predicted.max_merge;
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
}

}  // namespace deft::director
