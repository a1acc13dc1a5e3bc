// SPDX-License-Identifier: Apache-2.0
#include "planner/simulator/evaluate.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>

#include "planner/model/progress.h"
#include "planner/simulator/simulator.h"
#include "planner/solver/bounds.h"

namespace deft::planner {
namespace {

auto place(const Delivery& d) {
    return std::tuple(d.iteration, d.bucket, d.begin, d.end);
}

}  // namespace

Prediction counted(const Plan& plan, const Profile& profile) {
    Prediction p;
    double updated = 0;
    double aged = 0;
    double gradients = 0;
    for (std::size_t i = 0; i < plan.deliveries.size();) {
        std::uint32_t merged = 0;
        const std::size_t first = i;
        const double bytes = static_cast<double>(plan.deliveries[i].end - plan.deliveries[i].begin);
        for (; i < plan.deliveries.size() &&
               place(plan.deliveries[i]) == place(plan.deliveries[first]);
             ++i) {
            const Delivery& d = plan.deliveries[i];
            const std::uint32_t oldest = d.delay() + d.generation.count - 1;
            p.max_delay = std::max(p.max_delay, d.delay());
            p.max_age = std::max(p.max_age, oldest);
            merged += d.generation.count;
            aged += bytes * d.generation.count * 0.5 * (d.delay() + oldest);
            gradients += bytes * d.generation.count;
        }
        p.max_merge = std::max(p.max_merge, merged);
        updated += bytes;
    }
    const double total = static_cast<double>(profile.bytes());
    p.updates = updated / (total * plan.period);
    p.mean_age = gradients > 0 ? aged / gradients : 0;
    p.late = late_part(plan);
    return p;
}

double gap_to(double bound, double seconds) {
    const double gap = bound > 0 ? seconds / bound - 1 : 0;
    return std::abs(gap) < 1e-9 ? 0 : gap;  // rounding is no gap
}

void arrange(Plan& plan, const Profile& profile, const Fabric& fabric) {
    if (const std::string why = profile.problem(); !why.empty()) {
        throw std::invalid_argument("profile: " + why);
    }
    if (const std::string why = fabric.problem(); !why.empty()) {
        throw std::invalid_argument("fabric: " + why);
    }
    plan.bucket_bytes.clear();
    for (const Bucket& bucket : profile.buckets) {
        plan.bucket_bytes.push_back(bucket.bytes);
    }
    plan.links.clear();
    for (const Link& link : fabric.links) {
        plan.links.push_back(link.name);
    }
    std::stable_sort(plan.transfers.begin(), plan.transfers.end(),
                     [](const Transfer& a, const Transfer& b) {
                         return std::tuple(a.iteration, a.stage) < std::tuple(b.iteration, b.stage);
                     });
    for (std::uint32_t x = 0; x < plan.transfers.size(); ++x) {
        plan.transfers[x].order = x;
    }
    std::sort(plan.deliveries.begin(), plan.deliveries.end(),
              [](const Delivery& a, const Delivery& b) {
                  return std::tuple_cat(place(a), std::tuple(a.generation.first)) <
                         std::tuple_cat(place(b), std::tuple(b.generation.first));
              });
    const Prediction said = counted(plan, profile);
    Prediction& p = plan.predicted;
    p.updates = said.updates;
    p.max_delay = said.max_delay;
    p.max_age = said.max_age;
    p.max_merge = said.max_merge;
    p.mean_age = said.mean_age;
    p.late = said.late;
}

void evaluate(Plan& plan, const Profile& profile, const Fabric& fabric) {
    arrange(plan, profile, fabric);
    const SimulationResult run = simulate(plan, profile, fabric);
    for (std::size_t x = 0; x < plan.transfers.size(); ++x) {
        plan.transfers[x].start = run.stuck ? 0 : run.starts[x];
        plan.transfers[x].finish = run.stuck ? 0 : run.finishes[x];
    }
    Prediction& p = plan.predicted;
    p.iteration = run.iteration;
    p.exposed = run.exposed;
    p.cycles = run.cycles;
    p.bound = lower_bound(plan, profile, fabric);
    p.gap = gap_to(p.bound, p.iteration);
}

}  // namespace deft::planner
