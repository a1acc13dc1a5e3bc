// SPDX-License-Identifier: Apache-2.0
#include "perf/anchors/system_model.h"

#include <cmath>

#include "planner/model/model.h"
#include "planner/policies/policy.h"

namespace deft::anchors {
namespace {

using planner::Bucket;
using planner::Fabric;
using planner::Link;
using planner::Profile;

}  // namespace

// As these systems see them; MG-WFBP merges them itself.
const Profile& tensors_of(int model) {
    static const std::array<Profile, kModels> kProfiles = [] {
        std::array<Profile, kModels> all;
        for (int m = 0; m < kModels; ++m) {
            planner::ModelRun run;
            run.seconds = one_gpu_seconds(m);
            run.first_bucket = run.bucket = 1;
            all[static_cast<std::size_t>(m)] =
                planner::model_profile(planner::make_model(kModelNames[m]), run);
        }
        return all;
    }();
    return kProfiles[static_cast<std::size_t>(model)];
}

Fabric link_of(const Constants& c, int method, int gpus) {
    Fabric fabric;
    Link link;
    link.name = "nic";
    link.cost.alpha = 2.0 * (gpus - 1) * c.hop;
    link.cost.beta = 2.0 * (gpus - 1) / gpus / c.rate;
    if (method == kByteScheduler) {
        planner::CostCurve negotiation;
        negotiation.alpha = c.per_message;
        link.hops = {{"coordinator", negotiation}, {"wire", link.cost}};
    } else {
        link.per_message = c.per_message;
    }
    link.compute_slowdown = c.contention;
    fabric.links.push_back(link);
    return fabric;
}

// Handling a tensor takes the framework's thread away from compute, in the order of backward.
Profile handled(Profile tensors, const Constants& c) {
    double late = 0;
    for (Bucket& bucket : tensors.buckets) {
        late += c.framework;
        bucket.ready += late;
    }
    tensors.backward += late;
    return tensors;
}

double simulated(int /*link*/, int model, int method, int size, const Constants& c) {
    return system_seconds(tensors_of(model), method, kGpus[size], c);
}

double system_seconds(const Profile& tensors, int method, int gpus, const Constants& c) {
    return system_seconds(handled(tensors, c), link_of(c, method, gpus), method, 0);
}

double system_seconds(const Profile& profile, const Fabric& fabric, int method, double startup) {
    planner::Options options;
    // A start-up nothing is worth: BSP sends everything in one message.
    options.startup_seconds = method == 0 ? 1.0 : startup;
    switch (method) {
        case 0:  // after backward, everything in one fused message
            return plan_mg_wfbp(profile.without_overlap(), fabric, options).predicted.iteration;
        case 1:
            return plan_none(profile, fabric, options).predicted.iteration;
        case 2:
            return plan_mg_wfbp(profile, fabric, options).predicted.iteration;
        default:
            return plan_bytescheduler(profile, fabric, options).predicted.iteration;
    }
}

Residuals residuals(int link, const std::array<Constants, kMethods>& constants) {
    Residuals result;
    for (int m = 0; m < kModels; ++m) {
        for (int k = 0; k < kMethods; ++k) {
            for (int s = 0; s < kSizes; ++s) {
                result.seconds[m][k][s] =
                    simulated(link, m, k, s, constants[static_cast<std::size_t>(k)]);
            }
        }
    }
    return result;
}

int wrong_orders(const Residuals& of, int link, double least) {
    int wrong = 0;
    for (int m = 0; m < kModels; ++m) {
        for (int s = 0; s < kSizes; ++s) {
            for (int a = 0; a < kMethods; ++a) {
                for (int b = a + 1; b < kMethods; ++b) {
                    const double real = measured(m, link, a, s) / measured(m, link, b, s) - 1;
                    const double ours = of.seconds[m][a][s] / of.seconds[m][b][s] - 1;
                    wrong += std::abs(real) >= least && (real > 0) != (ours > 0) ? 1 : 0;
                }
            }
        }
    }
    return wrong;
}

}  // namespace deft::anchors
