// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/job_line.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "base/link_stats.h"

namespace deft {
namespace {

[[gnu::format(printf, 2, 3)]] void add(std::string& line, const char* format, ...) {
    char words[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(words, sizeof(words), format, arguments);
    va_end(arguments);
    line += words;
}

// The plan that came furthest: in force, else one that was.
const PlanFacts* told(const ReportFacts& facts) {
    const PlanFacts* best = nullptr;
    for (const PlanFacts& plan : facts.plans) {
        if (best == nullptr || (plan.state == "running" && best->state != "running") ||
            (best->state != "running" && plan.switched > best->switched)) {
            best = &plan;
        }
    }
    return best;
}

// What came late, how long, and what the loss did meanwhile; of the latest plan that has fallen.
void add_guard(std::string& line, const PlanFacts& plan) {
    if (plan.guard_decisions > 0) {
        add(line, "; guard: %llu decisions", static_cast<unsigned long long>(plan.guard_decisions));
    }
    const auto fallen =
        std::find_if(plan.guard_history.rbegin(), plan.guard_history.rend(),
                     [](const GuardEvent& event) { return event.acted && event.to > 0; });
    if (fallen == plan.guard_history.rend()) {
        return;
    }
    add(line, "; it ended a plan that was in force in iterations %llu to %llu: %s",
        static_cast<unsigned long long>(fallen->from), static_cast<unsigned long long>(fallen->to),
        fallen->reason.c_str());
    add(line, "; gradients were up to %u iterations late, %llu generations were dropped",
        fallen->late_by, static_cast<unsigned long long>(fallen->dropped));
    if (std::isfinite(fallen->loss_expected) && std::isfinite(fallen->loss_seen)) {
        add(line, ", and the loss was %.4g where its trend was %.4g at most", fallen->loss_seen,
            fallen->loss_expected);
    }
}

void add_plan(std::string& line, const PlanFacts& plan, double now_ms) {
    if (plan.state != "running") {
        add(line, "; %s, state %s%s%s",
            plan.switched > 0 ? "a plan was in force and has ended" : "no plan was in force",
            plan.state.c_str(), plan.reason.empty() ? "" : ": ", plan.reason.c_str());
    } else if (plan.before_ms > 0 && now_ms > 0 && plan.period == 1) {
        const double change = (now_ms / plan.before_ms - 1) * 100;
        add(line, "; plan '%s' in force: %.2f ms before it, %.1f %% %s now", plan.policy.c_str(),
            plan.before_ms, change < 0 ? -change : change, change < 0 ? "less" : "more");
    } else {
        add(line, "; plan '%s' in force", plan.policy.c_str());
    }
    const bool in_force = plan.state == "running";  // else they are of the plan proposed last
    if (in_force && plan.updates < 1) {
        add(line, ", %.3g updates an iteration", plan.updates);
    }
    if (in_force && plan.progress < 1) {
        add(line, ", worth %.3g synchronous ones", plan.progress);
    }
    add_guard(line, plan);
}

void add_links(std::string& line) {
    const LinkStats& stats = LinkStats::process();
    double again = 0;
    for (std::size_t i = 0; i < stats.size(); ++i) {
        const auto get = [](const auto& counter) {
            return static_cast<double>(counter.load(std::memory_order_relaxed));
        };
        add(line, "%s%s %.1f MB", i == 0 ? "; sent " : ", ", stats[i].name,
            get(stats[i].bytes_sent) * 1e-6);
        again += get(stats[i].resent_bytes);
    }
    if (again > 0) {
        add(line, "; %.1f MB sent again", again * 1e-6);
    }
}

}  // namespace

std::string job_line(const ReportFacts& facts, const Track* track) {
    std::string line;
    add(line, "job of %d ranks has ended: mode %s", facts.ranks, facts.mode.c_str());
    const CallTimes* const times = track != nullptr ? track->main_profile() : nullptr;
    double now_ms = 0;
    if (times != nullptr && times->iteration_ms().count() > 0) {
        now_ms = times->iteration_ms().summary().median;
        add(line, "; %llu iterations of %.2f ms",
            static_cast<unsigned long long>(times->iterations()), now_ms);
    }
    if (const PlanFacts* const plan = told(facts)) {
        add_plan(line, *plan, now_ms);
    }
    add_links(line);
    return line;
}

}  // namespace deft
