// SPDX-License-Identifier: Apache-2.0
// One table of every policy over five models, one and two links, and coverage rates, simulated.
#include "perf/headlines/matrix.h"

#include <cstdio>

#include "planner/model/model.h"
#include "planner/model/progress.h"
#include "planner/policies/policy.h"

namespace deft::headlines {
namespace {

using planner::Fabric;
using planner::Options;
using planner::Plan;
using planner::Profile;

constexpr double kSlower = 1.65;  // the second link, as the DeFT paper's (from memory)
constexpr double kSeconds = 0.3;  // compute of an iteration: with ideal links it cancels out
constexpr double kCoverage[] = {0.5, 0.75, 0.9, 1.0, 1.1, 1.3, 1.5, 2.0, 3.0};
const char* const kModels[] = {"vgg19", "resnet101", "gpt2", "bert-large", "llama-2-7b"};

// A policy, or DeFT with one of its parts switched off.
struct Row {
    const char* name;
    const char* policy;
    void (*change)(Options&);
    bool one_link = false;
};

const Row kRows[] = {
    {"none", "none", nullptr},
    {"wfbp", "wfbp", [](Options& o) { o.barrier = planner::Barrier::Layer; }},
    {"mg-wfbp", "mg-wfbp", nullptr},
    {"bytescheduler", "bytescheduler", nullptr},
    {"us-byte", "us-byte", nullptr},
    {"dear", "dear", nullptr},
    {"deft", "deft", nullptr},
    {"deft without its second link", "deft", nullptr, true},
    {"deft without cutting", "deft", [](Options& o) { o.allow_split = false; }},
    {"deft without merging", "deft", [](Options& o) { o.max_merge = 1; }},
    {"deft without more than one late", "deft", [](Options& o) { o.max_delay = 1; }},
    {"covap", "covap", nullptr},
    {"best", "best", [](Options& o) { o.objective = planner::Objective::IterationTime; }},
    {"best by progress", "best",
     [](Options& o) {
         o.objective = planner::Objective::Progress;
         o.mixed_ages = true;
     }},
};

Fabric fabric_for(const Profile& profile, double coverage, bool two) {
    planner::Link link;
    link.name = "first";
    link.cost.beta = coverage * profile.compute() / static_cast<double>(profile.bytes());
    Fabric fabric;
    fabric.links.push_back(link);
    if (two) {
        link.name = "second";
        link.cost.beta *= kSlower;
        fabric.links.push_back(link);
    }
    return fabric;
}

void print(const char* model, bool two, double coverage, const Row& row, const Profile& profile,
           const Fabric& fabric, double reference) {
    Options options;
    options.max_delay = options.max_merge = 4;
    if (row.change != nullptr) {
        row.change(options);
    }
    Fabric used = fabric;
    if (row.one_link) {
        used.links.resize(1);
    }
    const Plan plan = make_plan(row.policy, profile, used, options);
    const planner::Prediction& p = plan.predicted;
    std::printf("%s,%d,%.2f,%s,%s,%.3f,%.3f,%.3f,%.3f,%u,%.3f\n", model, two ? 2 : 1, coverage,
                row.name, plan.origin.c_str(), reference / p.iteration, p.updates,
                progress_per_iteration(plan, options), p.late, p.max_age, p.exposed / p.iteration);
}

}  // namespace

void print_matrix() {
    std::printf(
        "model,links,coverage_rate,policy,of,speedup,updates_per_iteration,progress,"
        "late_part,oldest,bubbles\n");
    for (const char* model : kModels) {
        planner::ModelRun run;
        run.seconds = kSeconds;
        const Profile profile = model_profile(planner::make_model(model), run);
        for (const bool two : {false, true}) {
            for (const double coverage : kCoverage) {
                const Fabric fabric = fabric_for(profile, coverage, two);
                const double reference = make_plan("none", profile, fabric).predicted.iteration;
                for (const Row& row : kRows) {
                    if (two || !row.one_link) {
                        print(model, two, coverage, row, profile, fabric, reference);
                    }
                }
            }
        }
    }
}

}  // namespace deft::headlines
