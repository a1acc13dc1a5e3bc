// SPDX-License-Identifier: Apache-2.0
#include "shim/control/standing.h"

#include "shim/control/plan_facts.h"

namespace deft::director {
namespace {

const char* state_name(agreement::Verdict verdict, const Follower& follower, const Leader* leader) {
    switch (verdict) {
        case agreement::Verdict::Pending:
            return "agreeing";
        case agreement::Verdict::Off:
            return "no agreement";
        case agreement::Verdict::On:
            break;
    }
    if (follower.current() != nullptr) {
        return "running";
    }
    if (follower.staging()) {
        return "staging";
    }
    return leader != nullptr ? to_string(leader->state()) : follower.state_name();
}

}  // namespace

PlanFacts standing(const agreement::Council& council, const Follower& follower,
                   const Leader* leader, bool forgotten) noexcept {
    PlanFacts facts;
    try {
        facts = follower.all_facts();
        const agreement::Verdict verdict = council.verdict();
        facts.state = state_name(verdict, follower, leader);
        if (verdict == agreement::Verdict::Off) {
            facts.reason = council.reason();
        } else if (follower.current() == nullptr) {
            facts.reason = follower.reason();
        }
        if (!forgotten) {
            describe_plan(follower, leader, facts);
        }
    } catch (...) {
    }
    return facts;
}

void describe_plan(const Follower& follower, const Leader* leader, PlanFacts& facts) {
    // A plan that is to take its place may still come to nothing.
    describe(follower.current() != nullptr ? follower.in_force() : follower.plan(), facts);
    if (leader != nullptr) {
        const planner::Spread& before = leader->before();
        facts.before_ms = before.median * 1e3;
        facts.before_p10_ms = before.p10 * 1e3;
        facts.before_p90_ms = before.p90 * 1e3;
        facts.before_n = before.n;
        facts.guard_decisions = leader->guard_decisions();
        facts.guard_history = leader->guard_history();
        facts.loss = leader->late_stretch().seen;
        facts.loss_expected = leader->late_stretch().expected;
    }
}

}  // namespace deft::director
