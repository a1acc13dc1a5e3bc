// SPDX-License-Identifier: Apache-2.0
// What `deft advise` says of real models on real links, against the planner's own plans: no plan
// beats a bound, and every gain that is promised of a mode is that of a plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "planner/adviser.h"
#include "planner/model/model.h"
#include "planner/model/presets.h"
#include "planner/policies/policy.h"

namespace deft::planner {
namespace {

struct Job {
    const char* model;
    std::vector<const char*> links;
    std::uint32_t ranks;
    double seconds;        // 0: the model's own
    std::uint64_t bucket;  // 0: DDP's; 1: one for each layer
};

const std::vector<Job>& jobs() {
    static const std::vector<Job> kAll = {
        {"resnet50", {"10GbE"}, 32, 0, 1},
        {"resnet101", {"10GbE"}, 8, 0, 0},
        {"vgg19", {"10GbE"}, 16, 0.2, 0},
        {"resnet50", {"100Gb-IB", "10GbE"}, 8, 0.015965, 100 << 20},
        {"gpt2", {"10GbE"}, 1024, 0, 0},
        {"bert-base", {"10GbE", "10GbE"}, 8, 0.3, 0},
    };
    return kAll;
}

Profile profile_of(const Job& job) {
    ModelRun run;
    run.seconds = job.seconds;
    run.one_per_layer = job.bucket == 1;
    run.bucket = job.bucket > 1 ? job.bucket : run.bucket;
    return model_profile(make_model(job.model), run);
}

Fabric fabric_of(const Job& job) {
    Fabric fabric;
    for (const char* name : job.links) {
        Link link = preset_link(name, job.ranks);
        link.name += std::to_string(fabric.links.size());
        fabric.links.push_back(link);
    }
    return fabric;
}

Options caps(std::uint32_t delay, std::uint32_t merge, Barrier barrier, bool whole = false) {
    Options options;
    options.max_delay = delay;
    options.max_merge = merge;
    options.barrier = barrier;
    options.complete_generations = whole;
    options.objective = Objective::IterationTime;
    return options;
}

double soonest(const Profile& profile, const Fabric& fabric, const Options& options) {
    double least = INFINITY;
    for (const Policy& policy : policies()) {
        const Plan plan = make_plan(policy.name, profile, fabric, options);
        const Prediction& p = plan.predicted;
        const bool allowed = p.max_delay <= options.max_delay && p.max_merge <= options.max_merge &&
                             (options.barrier == Barrier::Layer || plan.barrier == Barrier::Update);
        least = allowed ? std::min(least, p.iteration) : least;
    }
    return least;
}

TEST(Advice, NoPlanBeatsABound) {
    for (const Job& job : jobs()) {
        SCOPED_TRACE(job.model);
        const Profile profile = profile_of(job);
        const Fabric fabric = fabric_of(job);
        const Advice advice = advise(profile, fabric, {});
        Fabric first = fabric;
        first.links.resize(1);
        const Options synchronous = caps(0, 1, Barrier::Update);
        const Options layers = caps(0, 1, Barrier::Layer);
        const auto holds = [](double bound, double seconds) {
            EXPECT_LE(bound, seconds * (1 + 1e-9));
        };
        holds(advice.bound_striped, soonest(profile, fabric, synchronous));
        holds(advice.bound_striped, soonest(profile, fabric.merged(), synchronous));
        holds(advice.bound_order, soonest(profile, first, layers));
        holds(advice.bound_links, soonest(profile, fabric, layers));
        holds(advice.bound_delay, soonest(profile, fabric, caps(1, 1, Barrier::Layer)));
        holds(advice.bound_merge, soonest(profile, fabric, caps(1, 2, Barrier::Layer)));
        for (const BenefitPoint& point : benefit_of(profile, fabric, {}).curve) {
            EXPECT_LE(point.bound, point.merged * (1 + 1e-9));
        }
        const bool only = advice.verdict.find(": only more links") != std::string::npos;
        if (only) {  // and nothing else
            EXPECT_GT(soonest(profile, first, caps(1, 1, Barrier::Layer)) * 1.02,
                      advice.here.as_is);
        } else if (advice.coverage.middle > 1.3) {
            EXPECT_NE(advice.verdict.find("beyond that only"), std::string::npos) << advice.verdict;
        }
    }
}

TEST(Advice, EveryPromiseOfAModeIsAPlan) {
    for (const Job& job : jobs()) {
        SCOPED_TRACE(job.model);
        const Profile profile = profile_of(job);
        const Fabric fabric = fabric_of(job);
        const Fabric seen = fabric.links.size() > 1 ? fabric.merged() : fabric;
        const BenefitPoint here = advise(profile, fabric, {}).here;
        const auto best = [&](Options options) {
            options.allow_fusion = options.halves = false;
            options.least_piece = 256 << 10;
            return make_plan("best", profile, seen, options).predicted.iteration;
        };
        const double striped = best(caps(0, 1, Barrier::Update));
        const double layered = std::min(striped, best(caps(0, 1, Barrier::Layer)));
        const double late = std::min(layered, best(caps(1, 1, Barrier::Update)));
        const double merged = std::min(late, best(caps(0, 2, Barrier::Update, true)));
        // `best` takes the job as it is where a gain is below the noise.
        const double noise = 1 - Options().noise;
        EXPECT_GE(here.layered, layered * noise);
        EXPECT_GE(here.late, late * noise);
        EXPECT_GE(here.merged, merged * noise);
    }
}

// The case of the issue: 467.3 ms were promised where whole updates take 600.7.
TEST(Advice, PromisesOfWholeUpdatesAreWhatTheyTake) {
    const Job& job = jobs()[2];
    const Advice advice = advise(profile_of(job), fabric_of(job), {});
    EXPECT_NEAR(advice.here.merged, 0.6007, 1e-4);
    EXPECT_NE(advice.verdict.find("fewer updates (1.67x, 1.11x to the same loss)"),
              std::string::npos)
        << advice.verdict;
}

}  // namespace
}  // namespace deft::planner
