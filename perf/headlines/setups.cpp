// SPDX-License-Identifier: Apache-2.0
#include "perf/headlines/setups.h"

#include <algorithm>
#include <cmath>

#include "perf/anchors/constants.h"
#include "perf/anchors/system_model.h"
#include "planner/model/collective.h"
#include "planner/model/model.h"
#include "planner/model/presets.h"
#include "planner/policies/policy.h"

namespace deft::headlines {
namespace {

using planner::Fabric;
using planner::Options;
using planner::Plan;
using planner::Profile;

// A ring step of a data-centre Ethernet; a message of 16 ranks starts up in 30 of them.
constexpr double kHop = 10e-6;

double communication(const Profile& profile, const Fabric& fabric) {
    double sum = 0;
    for (const planner::Bucket& bucket : profile.buckets) {
        sum += fabric.links[0].seconds(static_cast<double>(bucket.bytes));
    }
    return sum;
}

Profile profile_of(const std::string& model, double seconds, std::uint64_t bucket = 0) {
    planner::ModelRun run;
    run.seconds = seconds;
    if (bucket > 0) {
        run.first_bucket = run.bucket = bucket;
    }
    return planner::model_profile(planner::make_model(model), run);
}

// One link on which the profile has this coverage rate, start-ups included.
Fabric fabric_at(const Profile& profile, double coverage, std::uint32_t gpus) {
    Fabric fabric;
    const double startups = 2.0 * (gpus - 1) * kHop * static_cast<double>(profile.size());
    const double moving = std::max(coverage * profile.compute() - startups, 1e-9);
    const double rate = static_cast<double>(profile.bytes()) * 2 * (gpus - 1) / gpus / moving;
    fabric.links.push_back(planner::ring_link("fast", gpus, kHop, rate));
    return fabric;
}

Row row_of(std::string setup, const Plan& plan, const Profile& profile, const Fabric& fabric,
           const std::string& against, double reference) {
    return {std::move(setup),
            plan.policy,
            against,
            communication(profile, fabric) / profile.compute(),
            plan.predicted.iteration,
            reference,
            plan.predicted.updates,
            plan.predicted.max_age};
}

}  // namespace

std::vector<Row> deft_rows(const std::string& model, double coverage, bool capped) {
    constexpr std::uint32_t kGpus = 16;
    constexpr double kSlower = 1.65;
    const Profile profile = profile_of(model, 0.3);
    const Fabric one = fabric_at(profile, coverage, kGpus);
    Fabric two = one;
    planner::Link slow = one.links[0];
    slow.name = "slow";
    slow.cost.alpha *= kSlower;
    slow.cost.beta *= kSlower;
    two.links.push_back(slow);
    Options options;
    if (!capped) {
        options.max_delay = options.max_merge = options.max_period = 64;
    }
    const Plan deft = make_plan("deft", profile, two, options);
    std::vector<Row> rows;
    for (const char* other : {"bytescheduler", "us-byte"}) {
        const double reference = make_plan(other, profile, one).predicted.iteration;
        rows.push_back(row_of(model, deft, profile, two, other, reference));
    }
    return rows;
}

namespace {

// One RTX 2080 Ti: measured for ResNet-50 and BERT-Base (ddl-benchmarks, batch 64); BERT-large at
// batch 32 scaled by its floating-point operations.
double seconds_2080ti(const std::string& model) {
    const auto work = [](const std::string& name) {
        double sum = 0;
        for (const planner::Layer& layer : planner::make_model(name).layers) {
            sum += layer.flops;
        }
        return sum;
    };
    const double base = 64 / 212.8;
    return model == "resnet50"    ? 64 / 253.1
           : model == "bert-base" ? base
                                  : base * work(model) / work("bert-base") / 2;
}

}  // namespace

Row dear_row(const std::string& model, const std::string& link, std::uint32_t gpus) {
    const double seconds = seconds_2080ti(model);
    Fabric fabric;
    fabric.links.push_back(planner::preset_link(link, gpus));
    const Profile profile = profile_of(model, seconds);
    const Plan dear = make_plan("dear", profile, fabric);
    double reference = INFINITY;
    std::string against;
    for (const char* other : {"none", "mg-wfbp", "bytescheduler"}) {
        const double time = make_plan(other, profile, fabric).predicted.iteration;
        if (time < reference) {
            reference = time;
            against = other;
        }
    }
    return row_of(model + ", " + link, dear, profile, fabric, against, reference);
}

SystemsRow systems_row(int model, int link, std::uint32_t gpus) {
    const anchors::Constants& constants = anchors::kFittedToBoth;
    const int n = static_cast<int>(gpus);
    const anchors::Job& job = anchors::job(model);
    const auto measured = [&](int method) {
        return anchors::system_seconds(job, constants, link, method, n);
    };
    SystemsRow row;
    row.setup = std::string(anchors::kModelNames[model]) + ", " + anchors::kLinkNames[link];
    row.gpus = gpus;
    row.wfbp = measured(anchors::kWfbp);
    row.mg_wfbp = measured(anchors::kMgWfbp);
    row.bytescheduler = measured(anchors::kByteScheduler);
    const Profile profile = anchors::profile_of(job, constants);
    const Fabric fabric = anchors::link_of(constants, link, anchors::kWfbp, n);
    Options options;
    const auto dear = [&](std::uint64_t fusion) {
        options.fusion_bytes = fusion;
        return make_plan("dear", profile, fabric, options).predicted.iteration;
    };
    row.dear_unfused = dear(1);
    row.dear_fused = dear(0);  // tuned
    row.us_byte = make_plan("us-byte", profile, fabric).predicted.iteration;
    return row;
}

Row us_byte_row(const std::string& model, double coverage, std::uint32_t gpus,
                const std::string& against) {
    // A message per tensor: WFBP as the paper compares with it, without DDP's buckets.
    const Profile profile = profile_of(model, 0.3, 1);
    const Profile buckets = profile_of(model, 0.3);
    Fabric fabric = fabric_at(buckets, coverage, gpus);
    const Plan plan = make_plan("us-byte", profile, fabric);
    const double reference =
        make_plan(against == "wfbp" ? "none" : against, profile, fabric).predicted.iteration;
    Row row = row_of(model + ", " + std::to_string(gpus) + " ranks", plan, profile, fabric, against,
                     reference);
    row.coverage = coverage;
    return row;
}

Row covap_row(const std::string& model, double compute_seconds, double rate, std::uint32_t gpus) {
    const Profile profile = profile_of(model, compute_seconds);
    Fabric fabric;
    fabric.links.push_back(planner::ring_link("vpc", gpus, kHop, rate));
    Options options;
    options.max_merge = options.max_period = 64;
    const Plan covap = make_plan("covap", profile, fabric, options);
    const double reference = make_plan("none", profile, fabric).predicted.iteration;
    return row_of(model + ", " + std::to_string(gpus) + " ranks", covap, profile, fabric, "none",
                  reference);
}

}  // namespace deft::headlines
