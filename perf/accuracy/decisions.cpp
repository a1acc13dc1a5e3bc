// SPDX-License-Identifier: Apache-2.0
// What the library decides about a job, asked by programs that replay trainings in one process
// (perf/accuracy/sweep.py): its plan, what that plan's late gradients ask of the job's steps, and
// when the guard ends it. The settings are those of the environment, as in a job.
//
//   decisions plan [POLICY]   one line of JSON on standard input: a profile. One line out: the
//                             plans that the library tries one after another until the job's steps
//                             bear one, or the plan of a policy of the planner's.
//   decisions guard RANKS     a line in for the plan in force, then one for each iteration, each
//                             answered with one line.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "deft/deft.h"
#include "planner/model/plan_json.h"
#include "planner/policies/policy.h"
#include "shim/control/guard_settings.h"
#include "shim/control/plan_choice.h"
#include "shim/control/plan_price.h"
#include "shim/guard/guard.h"
#include "shim/settings/companion.h"
#include "shim/settings/mode.h"
#include "shim/settings/optimizer.h"
#include "shim/settings/settings.h"

namespace deft {
namespace {

using nlohmann::json;

constexpr int kMostTries = 8;  // plans that are told

// Times in ms. `transfer_ms` is what each bucket's all-reduce takes in the job as it is.
planner::Profile profile_from(const json& text) {
    planner::Profile profile;
    profile.name = "replayed";
    profile.source = "model";
    profile.ranks = text.at("ranks");
    profile.forward = text.at("forward_ms").get<double>() * 1e-3;
    profile.backward = text.at("backward_ms").get<double>() * 1e-3;
    for (const json& one : text.at("buckets")) {
        planner::Bucket bucket;
        bucket.bytes = one.at("bytes");
        bucket.ready = one.at("ready_ms").get<double>() * 1e-3;
        bucket.forward = one.at("forward_ms").get<double>() * 1e-3;
        const double transfer = one.at("transfer_ms").get<double>() * 1e-3;
        bucket.transfer = {transfer, transfer, transfer, 50};
        profile.buckets.push_back(bucket);
    }
    if (const std::string problem = profile.problem(); !problem.empty()) {
        throw std::invalid_argument(problem);
    }
    return profile;
}

// Of r_t, r_{t-1} and r_{t-2} in what is delivered, by the delay and how many gradients each of
// these sums has; 0: it is not at hand.
json factors_of(const planner::Plan& plan, const executor::Prediction& prediction) {
    std::set<std::uint32_t> counts;
    std::set<std::uint32_t> delays;
    for (const planner::Delivery& delivery : plan.deliveries) {
        counts.insert(delivery.generation.count);
        delays.insert(delivery.delay());
    }
    std::set<std::uint32_t> before = counts;
    before.insert(0);
    json table = json::array();
    for (const std::uint32_t delay : delays) {
        for (const std::uint32_t count : counts) {
            for (const std::uint32_t previous : before) {
                for (const std::uint32_t earlier : before) {
                    const executor::Factors f =
                        executor::factors(prediction, delay, count, previous, earlier);
                    table.push_back({{delay, count, previous, earlier},
                                     {f.now, f.previous, f.before_previous}});
                }
            }
        }
    }
    return table;
}

json describe(const planner::Plan& plan, const std::string& note, director::PlanPrices& prices) {
    const executor::Prediction prediction = director::choose_prediction(plan);
    const double bound = prices.bound(plan, director::known_optimizer(), prediction);
    return {{"plan", json::parse(planner::plan_to_json(plan))},
            {"note", note},
            {"bound", std::isfinite(bound) ? json(bound) : json()},
            {"prediction", executor::to_text(prediction)},
            {"factors", factors_of(plan, prediction)}};
}

// The job is proven, and the library has looked at the plan a second time (it knows what backward
// ends with).
json library_plans(const planner::Profile& profile) {
    director::companion_begin(DEFT_COMPANION_INTERFACE, "replayed");
    director::Settings settings = director::Settings::process();
    settings.layers = director::layers_may_wait();
    settings.mixed_ages = true;
    if (!settings.age_price_named) {
        planner::Plan late;
        late.predicted.max_delay = 1;
        settings.age_price = director::PlanPrices::assumed_age_price(
            director::known_optimizer(), director::choose_prediction(late));
    }
    director::PlanPrices prices;
    json plans = json::array();
    for (int tries = 0; tries < kMostTries; ++tries) {
        std::string note;
        const planner::Plan plan = director::choose_plan(profile, {}, settings, note);
        plans.push_back(describe(plan, note, prices));
        if (!plan.predicted.late_or_merged() || !director::lower_caps(plan.predicted, settings)) {
            break;
        }
    }
    return plans;
}

json policy_plan(const planner::Profile& profile, const std::string& policy) {
    director::PlanPrices prices;
    return json::array({describe(
        planner::make_plan(policy, profile, director::fabric_of(profile, {}), {}), "", prices)});
}

int answer_plan(const std::string& policy) {
    std::string line;
    std::getline(std::cin, line);
    const planner::Profile profile = profile_from(json::parse(line));
    std::cout << (policy.empty() ? library_plans(profile) : policy_plan(profile, policy)).dump()
              << '\n';
    return 0;
}

// {"iteration", "plan": a plan or null}: switched to. {"iteration", "local": [of each rank],
// "reduced", "bytes", "merged", "not_finite", "cosine_before", "cosine_earlier"}: squared norms;
// without "local" it is no complete measurement. {"iteration"} alone: nothing was measured.
int answer_guard(int ranks) {
    guard::Guard watch(director::guard_settings(), ranks);
    for (std::string line; std::getline(std::cin, line);) {
        const json told = json::parse(line);
        const std::uint64_t iteration = told.at("iteration");
        if (told.contains("plan")) {
            watch.plan_in_force(told["plan"].is_null()
                                    ? planner::Plan{}
                                    : planner::plan_from_json(told["plan"].dump()),
                                iteration);
        }
        if (told.contains("reduced")) {
            guard::Statistics statistics;
            statistics.iteration = iteration;
            statistics.complete = told.contains("local");
            statistics.reduced_square =
                told["reduced"].is_null() ? NAN : told["reduced"].get<double>();
            statistics.bytes = told.at("bytes");
            statistics.merged = told.at("merged");
            statistics.not_finite = told.at("not_finite");
            statistics.cosine_before = told.value("cosine_before", executor::kNoCosine);
            statistics.cosine_earlier = told.value("cosine_earlier", executor::kNoCosine);
            for (int rank = 0; rank < ranks; ++rank) {
                statistics.local_square =
                    statistics.complete ? told["local"].at(rank).get<double>() : 0;
                watch.report(rank, statistics);
            }
        }
        const guard::Decision decision = watch.decide(iteration);
        std::cout << json{{"action", guard::to_string(decision.action)},
                          {"act", decision.act},
                          {"reason", decision.reason}}
                         .dump()
                  << std::endl;
    }
    return 0;
}

}  // namespace
}  // namespace deft

int main(int count, char** words) {
    const std::vector<std::string> arguments(words + 1, words + count);
    try {
        if (const char* const refusal = deft::shim_refusal()) {
            throw std::invalid_argument(refusal);
        }
        if (!arguments.empty() && arguments[0] == "plan" && count <= 3) {
            return deft::answer_plan(count == 3 ? arguments[1] : "");
        }
        if (count == 3 && arguments[0] == "guard") {
            return deft::answer_guard(std::stoi(arguments[1]));
        }
        std::fprintf(stderr, "usage: decisions plan [POLICY] | decisions guard RANKS\n");
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "decisions: %s\n", error.what());
        return 1;
    }
}
