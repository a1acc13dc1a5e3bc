// SPDX-License-Identifier: Apache-2.0
// The measured systems as plans for the simulator, with one set of constants per link and method.
#pragma once

#include <array>

#include "perf/anchors/ddl_benchmarks.h"
#include "planner/model/fabric.h"
#include "planner/model/profile.h"

namespace deft::anchors {

// One set for every model and number of GPUs. None is bound to a row.
struct Constants {
    double rate = 1e9;       // bytes per second of each rank's ring
    double hop = 0;          // seconds per ring step: a message starts up in 2(n-1) of them
    double per_message = 0;  // seconds of negotiation and launch per message (see simulated())
    double contention = 0;   // compute takes (1 + this) times as long while the link is busy
    double framework = 0;    // seconds of compute lost per tensor the framework handles

    static constexpr int kCount = 5;
    double& at(int i) {
        double* const fields[] = {&rate, &hop, &per_message, &contention, &framework};
        return *fields[i];
    }
};

// The link one method sees on so many GPUs, and a profile whose tensors the framework handles.
planner::Fabric link_of(const Constants& constants, int method, int gpus);
planner::Profile handled(planner::Profile tensors, const Constants& constants);

// Simulated seconds per iteration of a method for a profile of one bucket per tensor.
double system_seconds(const planner::Profile& tensors, int method, int gpus,
                      const Constants& constants);

// The same over this link and with the tensors as handled. `startup`: what MG-WFBP decides with, in
// seconds; 0: the link's own.
double system_seconds(const planner::Profile& handled, const planner::Fabric& fabric, int method,
                      double startup);

// Of a measured model: every tensor is a bucket of its own.
const planner::Profile& tensors_of(int model);

// The same for one of the measured rows; indices as in ddl_benchmarks.h. WFBP and MG-WFBP pay
// per_message on the link. ByteScheduler negotiates the messages its credit allows while others
// travel, one at a time: there it holds a resource of its own in front of the link.
double simulated(int link, int model, int method, int size, const Constants& constants);

struct Residuals {
    double seconds[kModels][kMethods][kSizes] = {};  // of one link
    double error(int link, int model, int method, int size) const {
        return seconds[model][method][size] / measured(model, link, method, size) - 1;
    }
};

Residuals residuals(int link, const std::array<Constants, kMethods>& constants);

// Pairs of methods whose simulated order is not the measured one, over all groups of a link
// (a group: one model at one number of GPUs). `least`: pairs measured closer than this fraction are
// left out.
int wrong_orders(const Residuals& of, int link, double least);

// Largest relative error a row may have: 10GbE BSP needs nothing but the rate.
constexpr double bar(int link, int method) {
    return link == 0 && method == 0 ? 0.10 : 0.15;
}

}  // namespace deft::anchors
