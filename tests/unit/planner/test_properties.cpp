// SPDX-License-Identifier: Apache-2.0
// What holds for every job, fabric and policy, over cases that rapidcheck draws and shrinks.
// RC_PARAMS="seed=N max_success=N" draws others (meson.build fixes the seed).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "planner/model/plan_json.h"
#include "planner/model/progress.h"
#include "planner/model/water_filling.h"
#include "planner/policies/builder.h"
#include "planner/policies/mixed_ages.h"
#include "planner/policies/policy.h"
#include "planner/simulator/check.h"
#include "planner/simulator/simulator.h"
#include "planner/solver/bounds.h"
#include "planner/solver/closed_forms.h"
#include "planner/solver/packing.h"
#include "planner/solver/plan_floor.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

struct Case {
    Profile profile;
    Fabric fabric;
    Options options;
};

// Sizes come from rapidcheck, so that a failing case shrinks to few buckets and links.
Case draw() {
    const auto buckets = *rc::gen::inRange(1, 24).as("buckets");
    const auto links = *rc::gen::inRange(1, 5).as("links");
    const bool overheads = *rc::gen::arbitrary<bool>().as("overheads");
    const auto seed = *rc::gen::inRange(0, 1 << 30).as("seed");
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    Case one;
    one.profile = testing::random_profile(random, static_cast<std::uint32_t>(buckets));
    one.fabric = testing::random_fabric(random, static_cast<std::uint32_t>(links), overheads);
    one.options.max_delay = static_cast<std::uint32_t>(*rc::gen::inRange(0, 5).as("max_delay"));
    one.options.max_merge = static_cast<std::uint32_t>(*rc::gen::inRange(1, 5).as("max_merge"));
    one.options.barrier =
        *rc::gen::arbitrary<bool>().as("layer barrier") ? Barrier::Layer : Barrier::Update;
    one.options.mixed_ages = *rc::gen::arbitrary<bool>().as("mixed ages");
    return one;
}

// The caps of `best` only: the others say what they are, whatever was allowed.
Options caps_of(const Plan& plan, Options options) {
    options.max_delay = std::max(options.max_delay, plan.predicted.max_delay);
    options.max_merge = std::max(options.max_merge, plan.predicted.max_merge);
    options.max_period = std::max(options.max_period, plan.period);
    return options;
}

// A tie; next to `fewest-links` the noise: its branch and bound may pack a subset of the links
// better than what `best` has time for.
double slack_beside(const std::string& policy) {
    return policy == "fewest-links" ? 1.02 : 1 + 2e-4;
}

std::string first_problem(const std::vector<std::string>& problems) {
    return problems.empty() ? "" : problems.front();
}

RC_GTEST_PROP(Property, NoPolicyBeatsTheBoundAndEveryPlanPassesItsCheck, ()) {
    const Case one = draw();
    for (const Policy& policy : policies()) {
        const Plan plan = make_plan(policy.name, one.profile, one.fabric, one.options);
        RC_LOG() << policy.name << ": " << plan.predicted.iteration << " s" << std::endl;
        const Options caps = caps_of(plan, one.options);
        RC_ASSERT(first_problem(check_plan(plan, one.profile, one.fabric, caps)) == "");
        // The bound of what the plan does, and the one over everything its caps allow.
        const double least = lower_bound(one.profile, one.fabric, plan.barrier,
                                         plan.predicted.max_delay, plan.predicted.max_merge);
        RC_ASSERT(plan.predicted.iteration >= least * (1 - 1e-9));
        RC_ASSERT(plan.predicted.iteration >= plan.predicted.bound * (1 - 1e-9));
        RC_ASSERT(plan.predicted.iteration >= one.profile.compute() * (1 - 1e-9));
    }
}

RC_GTEST_PROP(Property, BestIsTheFastestWithinTheCaps, ()) {
    Case one = draw();
    one.options.noise = 0;
    one.options.objective = Objective::IterationTime;
    const Plan best = make_plan("best", one.profile, one.fabric, one.options);
    RC_ASSERT(best.predicted.max_delay <= one.options.max_delay);
    RC_ASSERT(best.predicted.max_merge <= one.options.max_merge);
    for (const Policy& policy : policies()) {
        const Plan plan = make_plan(policy.name, one.profile, one.fabric, one.options);
        const bool allowed =
            plan.predicted.max_delay <= one.options.max_delay &&
            plan.predicted.max_merge <= one.options.max_merge &&
            (plan.barrier == Barrier::Update || one.options.barrier == Barrier::Layer);
        if (allowed) {
            RC_LOG() << policy.name << ": " << plan.predicted.iteration << " s, best "
                     << best.predicted.iteration << std::endl;
            RC_ASSERT(best.predicted.iteration <=
                      plan.predicted.iteration * slack_beside(plan.policy));
        }
    }
    for (std::uint32_t merge = 1; merge <= one.options.max_merge; ++merge) {
        for (std::uint32_t delay = 0; delay <= one.options.max_delay; ++delay) {
            const Plan plan = plan_generations(one.profile, one.fabric, one.options, merge, delay);
            RC_LOG() << "merge " << merge << ", delay " << delay << ": " << plan.predicted.iteration
                     << " s, best " << best.predicted.iteration << std::endl;
            RC_ASSERT(best.predicted.iteration <= plan.predicted.iteration * (1 + 2e-4));
        }
    }
}

RC_GTEST_PROP(Property, BestDeliversCompleteGenerationsWhereOnlyTheyAreAllowed, ()) {
    Case one = draw();
    one.options.complete_generations = true;
    const Plan plan = make_plan("best", one.profile, one.fabric, one.options);
    RC_ASSERT(plan.complete_generations() || plan.predicted.mixed_ages());
    RC_ASSERT(!plan.predicted.mixed_ages() || one.options.mixed_ages);
    RC_ASSERT(plan.whole_updates());
    RC_ASSERT(plan.predicted.iteration >= plan.predicted.bound * (1 - 1e-9));
    for (std::uint32_t merge = 1; merge <= one.options.max_merge; ++merge) {
        for (std::uint32_t delay = 0; delay <= one.options.max_delay; ++delay) {
            RC_ASSERT(plan_generations(one.profile, one.fabric, one.options, merge, delay)
                          .complete_generations());
        }
    }
}

// Every plan that `best` may choose from, as far as this file can make it.
std::vector<Plan> candidates(const Case& one) {
    std::vector<Plan> all;
    for (const Policy& policy : policies()) {
        all.push_back(make_plan(policy.name, one.profile, one.fabric, one.options));
    }
    for (std::uint32_t merge = 1; merge <= one.options.max_merge; ++merge) {
        for (std::uint32_t delay = 0; delay <= one.options.max_delay; ++delay) {
            all.push_back(plan_generations(one.profile, one.fabric, one.options, merge, delay));
        }
    }
    Shares cut(one.fabric, one.options);
    const auto whole = largest_first(one.profile, one.fabric);
    std::uint64_t fresh = 0;
    for (std::size_t i = 0; one.options.mixed_ages && i < one.profile.size(); ++i) {
        all.push_back(mixed_ages(one.profile, one.fabric, one.options, fresh, whole, cut));
        fresh += one.profile.buckets[i].bytes;
    }
    const auto left_out = [&](const Plan& plan) {
        return plan.predicted.max_delay > one.options.max_delay ||
               plan.predicted.max_merge > one.options.max_merge ||
               (plan.barrier == Barrier::Layer && one.options.barrier == Barrier::Update) ||
               !std::isfinite(plan.predicted.iteration);
    };
    all.erase(std::remove_if(all.begin(), all.end(), left_out), all.end());
    return all;
}

RC_GTEST_PROP(Property, NoMixedAgesBeatTheBoundOfTheirKindAndEachPassesItsCheck, ()) {
    Case one = draw();
    Shares cut(one.fabric, one.options);
    const auto whole = *rc::gen::arbitrary<bool>().as("whole buckets")
                           ? largest_first(one.profile, one.fabric)
                           : std::vector<std::uint32_t>();
    const double part = *rc::gen::inRange(0, 101).as("per cent fresh") / 100.0;
    const auto fresh =
        static_cast<std::uint64_t>(part * static_cast<double>(one.profile.bytes())) / 512 * 512;
    const Plan plan = mixed_ages(one.profile, one.fabric, one.options, fresh, whole, cut);
    RC_ASSERT(
        first_problem(check_plan(plan, one.profile, one.fabric, caps_of(plan, one.options))) == "");
    RC_ASSERT(plan.predicted.iteration >= plan.predicted.bound * (1 - 1e-9));
    const double rate = one.fabric.best_rate();
    RC_ASSERT(plan.predicted.iteration >= mixed_ages_floor(one.profile, rate, fresh) * (1 - 1e-9));
    RC_ASSERT(plan_floor(plan, one.profile, one.fabric) <= plan.predicted.iteration * (1 + 1e-9));
    Plan other = plan;
    other.predicted.late += 0.01;
    RC_ASSERT(!check_plan(other, one.profile, one.fabric, caps_of(plan, one.options)).empty());
}

// Objective::Progress: no other plan reaches the same loss sooner, and of plans equally fast none
// with more updates, or as many and less late, is passed over.
RC_GTEST_PROP(Property, EquallyFastPlansChooseMoreUpdatesAndLessLateBytes, ()) {
    Case one = draw();
    one.options.noise = 0;
    one.options.objective = Objective::Progress;
    one.options.noise_scale = *rc::gen::inRange(0, 40).as("noise scale");
    one.options.age_price = 0.05 * *rc::gen::inRange(0, 21).as("age price");
    const Plan best = make_plan("best", one.profile, one.fabric, one.options);
    RC_ASSERT(first_problem(check_plan(best, one.profile, one.fabric, one.options)) == "");
    RC_ASSERT(best.predicted.iteration >=
              lower_bound(one.profile, one.fabric, one.options) * (1 - 1e-9));
    const auto seconds = [&](const Plan& plan) {
        return plan.predicted.iteration / progress_per_iteration(plan, one.options);
    };
    for (const Plan& plan : candidates(one)) {
        RC_LOG() << plan.policy << ": " << plan.predicted.iteration << " s, "
                 << plan.predicted.updates << " updates, " << plan.predicted.late << " late, "
                 << seconds(plan) << " s a step; best (" << best.origin << ") " << seconds(best)
                 << std::endl;
        RC_ASSERT(seconds(best) <= seconds(plan) * slack_beside(plan.policy));
        if (std::abs(seconds(plan) / seconds(best) - 1) <= 1e-9) {
            const double more = plan.predicted.updates - best.predicted.updates;
            RC_ASSERT(more <= 1e-9);
            RC_ASSERT(more < -1e-9 || plan.predicted.late >= best.predicted.late - 1e-9);
        }
    }
}

// `best` drops plans whose floor cannot win: a floor above the simulated time would lose the best.
RC_GTEST_PROP(Property, NoPlanIsFasterThanItsFloor, ()) {
    const Case one = draw();
    for (const Policy& policy : policies()) {
        const Plan plan = make_plan(policy.name, one.profile, one.fabric, one.options);
        RC_LOG() << policy.name << ": " << plan.predicted.iteration << " s" << std::endl;
        RC_ASSERT(plan_floor(plan, one.profile, one.fabric) <=
                  plan.predicted.iteration * (1 + 1e-9));
    }
    for (std::uint32_t merge = 1; merge <= one.options.max_merge; ++merge) {
        for (std::uint32_t delay = 0; delay <= one.options.max_delay; ++delay) {
            const Plan plan = plan_generations(one.profile, one.fabric, one.options, merge, delay);
            RC_LOG() << "merge " << merge << ", delay " << delay << ": " << plan.predicted.iteration
                     << " s" << std::endl;
            RC_ASSERT(plan_floor(plan, one.profile, one.fabric) <=
                      plan.predicted.iteration * (1 + 1e-9));
        }
    }
}

// Within the noise: the knapsacks of `deft` fall differently under other caps.
RC_GTEST_PROP(Property, WiderCapsNeverSlowBestDown, ()) {
    Case one = draw();
    one.options.noise = 0;
    one.options.objective = *rc::gen::element(Objective::IterationTime, Objective::Progress);
    one.options.noise_scale = *rc::gen::element(0.0, 1.0, 9.0, 100.0);
    one.options.age_price = *rc::gen::element(0.0, 0.15, 0.4, 2.0);
    one.options.complete_generations = *rc::gen::arbitrary<bool>().as("whole updates");
    const auto best = [&] {
        return seconds_that_count(make_plan("best", one.profile, one.fabric, one.options),
                                  one.options);
    };
    const double before = best();
    ++one.options.max_merge;
    const double merged = best();
    RC_ASSERT(merged <= before * 1.02);
    ++one.options.max_delay;
    RC_ASSERT(best() <= merged * 1.02);
}

RC_GTEST_PROP(Property, MutatedPlansAreRejected, ()) {
    Case one = draw();
    one.options.max_delay = one.options.max_merge = 64;
    const auto& policy = policies()[static_cast<std::size_t>(
        *rc::gen::inRange(0, static_cast<int>(policies().size())).as("policy"))];
    Plan plan = make_plan(policy.name, one.profile, one.fabric, one.options);
    RC_ASSERT(first_problem(check_plan(plan, one.profile, one.fabric, one.options)) == "");
    const auto pick = [](std::size_t size, const char* what) {
        return static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(size)).as(what));
    };
    Transfer& t = plan.transfers[pick(plan.transfers.size(), "transfer")];
    Delivery& d = plan.deliveries[pick(plan.deliveries.size(), "delivery")];
    const double shift = 0.01 * plan.predicted.iteration;
    switch (*rc::gen::inRange(0, 16).as("mutation")) {
        case 0:
            plan.transfers.erase(plan.transfers.begin() + (&t - plan.transfers.data()));
            break;
        case 1:
            plan.transfers.push_back(t);
            break;
        case 2:
            t.begin += 1;
            break;
        case 3:
            t.end -= 1;
            break;
        case 4:
            t.bucket = static_cast<std::uint32_t>(plan.bucket_bytes.size());
            break;
        case 5:
            t.link = static_cast<std::uint32_t>(plan.links.size());
            break;
        case 6:
            t.generation.count += 1;
            break;
        case 7:
            t.generation.first += static_cast<std::int32_t>(plan.period) + 1;
            break;
        case 8:
            t.start -= shift;
            break;
        case 9:
            t.finish += shift;
            break;
        case 10:
            plan.deliveries.erase(plan.deliveries.begin() + (&d - plan.deliveries.data()));
            break;
        case 11:
            plan.deliveries.push_back(d);
            break;
        case 12:
            d.generation.count += 1;
            break;
        case 13:
            d.end -= 1;
            break;
        case 14:
            plan.bucket_bytes[pick(plan.bucket_bytes.size(), "bucket")] += 1;
            break;
        default:
            plan.predicted.iteration *= 0.99;
    }
    RC_ASSERT(!check_plan(plan, one.profile, one.fabric, one.options).empty());
}

RC_GTEST_PROP(Property, PlansSurviveJson, ()) {
    const Case one = draw();
    const auto& policy = policies()[static_cast<std::size_t>(
        *rc::gen::inRange(0, static_cast<int>(policies().size())).as("policy"))];
    const Plan plan = make_plan(policy.name, one.profile, one.fabric, one.options);
    const Plan back = plan_from_json(plan_to_json(plan));
    RC_ASSERT(back == plan);
    RC_ASSERT(back.fingerprint() == plan.fingerprint());
}

// Without overhead: T_opt <= T_WFBP <= T_DDP <= F + B + C, T_WFBP <= F + T_opt, and ordering adds
// at most 1 + F/(F+B).
RC_GTEST_PROP(Property, ClosedFormsStandInTheirOrder, ()) {
    const auto buckets = *rc::gen::inRange(1, 40).as("buckets");
    std::mt19937_64 random(static_cast<std::uint64_t>(*rc::gen::inRange(0, 1 << 30).as("seed")));
    const Profile profile = testing::random_profile(random, static_cast<std::uint32_t>(buckets));
    const Fabric fabric = testing::one_link(testing::uniform(random, 5e8, 5e10));
    const auto costs = bucket_costs(profile, fabric.links[0]);
    const double hair = 1 + 1e-12;
    const double optimal = time_optimal(profile, costs);
    const double wfbp = time_wfbp(profile, costs);
    const double ddp = time_ddp(profile, costs);
    RC_ASSERT(optimal <= wfbp * hair);
    RC_ASSERT(wfbp <= ddp * hair);
    RC_ASSERT(ddp <= time_no_overlap(profile, costs) * hair);
    RC_ASSERT(ddp <= (profile.forward + optimal) * hair);
    RC_ASSERT(ddp / optimal <= (1 + profile.forward / profile.compute()) * hair);
    RC_ASSERT(optimal <= time_dear(profile, costs) * hair);
    for (const double phi : {1.0, 0.5}) {
        RC_ASSERT(time_delayed(profile, costs, 1, phi) <= ddp * hair);
    }
    const double simulated = plan_none(profile, fabric, {}).predicted.iteration;
    RC_ASSERT(std::abs(simulated - ddp) <= 1e-9 * ddp);
}

// More of what helps never hurts: a faster link, or one more of them.
RC_GTEST_PROP(Property, BoundsFallWithMoreRateDelayAndMerging, ()) {
    Case one = draw();
    const auto bound = [&](const Fabric& fabric, std::uint32_t delay, std::uint32_t merge) {
        return lower_bound(one.profile, fabric, one.options.barrier, delay, merge);
    };
    const double hair = 1 + 1e-12;
    const double now = bound(one.fabric, 0, 1);
    RC_ASSERT(bound(one.fabric, 1, 1) <= now * hair);
    RC_ASSERT(bound(one.fabric, 1, 2) <= bound(one.fabric, 1, 1) * hair);
    Fabric more = one.fabric;
    more.links.push_back(testing::line("extra", 1e9));
    RC_ASSERT(bound(more, 0, 1) <= now * hair);
    RC_ASSERT(bound(more, 1, 1) <= bound(one.fabric, 1, 1) * hair);
}

RC_GTEST_PROP(Property, PackingsFitAndStayBelowTheirBound, ()) {
    const auto items = *rc::gen::inRange(1, 60).as("items");
    const auto links = *rc::gen::inRange(1, 6).as("links");
    std::mt19937_64 random(static_cast<std::uint64_t>(*rc::gen::inRange(0, 1 << 30).as("seed")));
    PackingProblem problem;
    problem.links = static_cast<std::size_t>(links);
    double total = 0;
    for (int i = 0; i < items; ++i) {
        problem.value.push_back(testing::uniform(random, 1e-4, 5e-3));
        total += problem.value.back();
    }
    std::vector<double> slow;
    for (int j = 0; j < links; ++j) {
        slow.push_back(testing::uniform(random, 1, 4));
        problem.capacity.push_back(total * testing::uniform(random, 0, 1.2));
    }
    for (const double value : problem.value) {
        for (const double s : slow) {
            problem.cost.push_back(s * value + 1e-4 * s);
        }
    }
    PackingSolver solver;
    const Packing& packing = solver.greedy(problem);
    std::vector<double> load(problem.links, 0);
    double value = 0;
    for (std::size_t i = 0; i < problem.items(); ++i) {
        if (packing.link[i] != Packing::kUnsent) {
            const auto j = static_cast<std::size_t>(packing.link[i]);
            load[j] += problem.cost[i * problem.links + j];
            value += problem.value[i];
        }
    }
    for (std::size_t j = 0; j < problem.links; ++j) {
        RC_ASSERT(load[j] <= problem.capacity[j] * (1 + 1e-9));
    }
    RC_ASSERT(std::abs(value - packing.value) <= 1e-9 * total);
    RC_ASSERT(packing.value <= packing.bound * (1 + 1e-9));
}

RC_GTEST_PROP(Property, WaterFillingEndsTogetherAndBeatsEveryLinkAlone, ()) {
    const auto links = *rc::gen::inRange(1, 6).as("links");
    const bool overheads = *rc::gen::arbitrary<bool>().as("overheads");
    std::mt19937_64 random(static_cast<std::uint64_t>(*rc::gen::inRange(0, 1 << 30).as("seed")));
    Fabric fabric = testing::random_fabric(random, static_cast<std::uint32_t>(links), overheads);
    fabric.groups.clear();
    for (Link& link : fabric.links) {
        link.group.clear();
    }
    const double bytes = std::floor(testing::uniform(random, 1e5, 5e8));
    const WaterFilling filling = water_fill(fabric, bytes);
    double sum = 0;
    for (std::size_t j = 0; j < fabric.links.size(); ++j) {
        sum += filling.bytes[j];
        RC_ASSERT(filling.seconds <= fabric.links[j].seconds(bytes) * (1 + 1e-9));
        if (filling.bytes[j] > 0) {
            RC_ASSERT(fabric.links[j].seconds(filling.bytes[j]) <= filling.seconds * (1 + 1e-6));
        }
    }
    RC_ASSERT(std::abs(sum - bytes) <= 1e-6 * bytes);
    const auto whole = static_cast<std::uint64_t>(bytes);
    const auto shares = split_bytes(filling, whole, 512, 1 << 20);
    std::uint64_t total = 0;
    for (const std::uint64_t share : shares) {
        total += share;
    }
    RC_ASSERT(total == whole);
}

// A slower rank, a slower link, a busier one: never a faster iteration.
RC_GTEST_PROP(Property, StragglersAndSlowLinksNeverHelp, ()) {
    const Case one = draw();
    const Plan plan = make_plan("none", one.profile, one.fabric, one.options);
    Simulation calm;
    calm.ranks = 4;
    calm.iterations = 6;
    const double now = simulate(plan, one.profile, one.fabric, calm).iteration;
    Simulation slow = calm;
    slow.compute_factor = {1, 1, 1.3};
    RC_ASSERT(simulate(plan, one.profile, one.fabric, slow).iteration >= now * (1 - 1e-9));
    slow = calm;
    slow.rate_changes = {{0, 0, 0.5}};
    RC_ASSERT(simulate(plan, one.profile, one.fabric, slow).iteration >= now * (1 - 1e-9));
    slow = calm;
    slow.jitter = 0.2;
    RC_ASSERT(simulate(plan, one.profile, one.fabric, slow).iteration >= now * (1 - 1e-9));
}

}  // namespace
}  // namespace deft::planner
