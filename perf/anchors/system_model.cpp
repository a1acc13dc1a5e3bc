// SPDX-License-Identifier: Apache-2.0
#include "perf/anchors/system_model.h"

#include <algorithm>
#include <stdexcept>

#include "planner/policies/policy.h"
#include "planner/simulator/evaluate.h"

namespace deft::anchors {
namespace {

using planner::CostLine;
using planner::Fabric;
using planner::Link;
using planner::Options;
using planner::Plan;
using planner::Profile;

constexpr int kPerNode = 4;

// MG-WFBP does not measure the link: it merges by lines that its authors' code stores for each
// number of GPUs, one table for RDMA and one for the rest.
CostLine stored_line(int link, int gpus) {
    const struct {
        int gpus;
        CostLine ethernet, rdma;
    } rows[] = {
        {4, {4.204e-5, 2.059e-10}, {4.204e-5, 2.059e-10}},
        {8, {5.23e-4, 8.571e-10}, {9.75e-5, 3.057e-10}},
        {16, {9.08e-4, 7.396e-10}, {7.08e-4, 4.059e-10}},
        {32, {4.04e-3, 8.643e-10}, {4.06e-4, 4.907e-10}},
        {64, {7.04e-3, 9.643e-10}, {8.06e-4, 5.888e-10}},
    };
    for (const auto& row : rows) {
        if (row.gpus == gpus) {
            return link == 0 ? row.ethernet : row.rdma;
        }
    }
    throw std::invalid_argument("MG-WFBP has no line for so many GPUs");
}

double mg_wfbp_seconds(const Profile& profile, const Fabric& fabric, const CostLine& stored) {
    Fabric thought;
    thought.links.emplace_back();
    thought.links[0].name = "nic";
    thought.links[0].cost.alpha = stored.alpha;
    thought.links[0].cost.beta = stored.beta;
    Options options;
    options.predict = false;
    Plan plan = plan_mg_wfbp(profile, thought, options);
    evaluate(plan, profile, fabric);
    return plan.predicted.iteration;
}

// Python threads of ByteScheduler's hand over the interpreter for every module. Where that takes
// longer than the GPU, the GPU waits at every layer.
double bytescheduler_seconds(const Job& job, const Constants& c, const Fabric& fabric) {
    Profile profile = job.tensors;
    profile.forward += job.optimizer;
    const double slow = std::max(1.0, job.modules * c.module / profile.compute());
    profile.forward *= slow;
    profile.backward *= slow;
    for (planner::Bucket& bucket : profile.buckets) {
        bucket.ready *= slow;
        bucket.forward *= slow;
    }
    Options options;  // as the script sets them: 4 and 16 million parameters
    options.partition_bytes = 16'000'000;
    options.credit_bytes = 64'000'000;
    return plan_bytescheduler(profile, fabric, options).predicted.iteration;
}

}  // namespace

Fabric link_of(const Constants& c, int link, int method, int gpus) {
    const double n = gpus;
    const double steps = 2 * (n - 1);
    Link made;
    made.name = "nic";
    made.cost.beta = steps / n / (link == 0 && gpus > kPerNode ? std::min(c.wire, c.node) : c.node);
    if (method != kByteScheduler) {
        made.per_message = c.message;
        // A step takes its latency or its bytes, whichever is more: the ring is pipelined.
        const double shortest = std::max(steps * c.hop, made.cost.beta);
        constexpr double kLargest = 1e11;
        made.cost.points = {{shortest / made.cost.beta, shortest},
                            {kLargest, kLargest * made.cost.beta}};
        made.cost.straight = true;
    }
    Fabric fabric;
    fabric.links.push_back(made);
    return fabric;
}

Profile profile_of(const Job& job, const Constants& c) {
    Profile profile = job.tensors;
    profile.forward += job.optimizer + job.launches * c.launch;
    return profile;
}

double system_seconds(const Job& job, const Constants& c, int link, int method, int gpus) {
    const Fabric fabric = link_of(c, link, method, gpus);
    if (method == kByteScheduler) {
        return bytescheduler_seconds(job, c, fabric);
    }
    const Profile profile = profile_of(job, c);
    if (method == kMgWfbp) {
        return mg_wfbp_seconds(profile, fabric, stored_line(link, gpus));
    }
    if (method == kWfbp) {
        return plan_none(profile, fabric, {}).predicted.iteration;
    }
    Options one_message;  // after backward: no start-up is worth a second one
    one_message.startup_seconds = 1;
    return plan_mg_wfbp(profile.without_overlap(), fabric, one_message).predicted.iteration;
}

double simulated(const Constants& c, int model, int link, int method, int size) {
    return system_seconds(job(model), c, link, method, kGpus[size]);
}

}  // namespace deft::anchors
