// SPDX-License-Identifier: Apache-2.0
// The set-ups in which the papers report their headline figures, as far as they are known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/options.h"
#include "planner/model/plan.h"
#include "planner/model/profile.h"

namespace deft::headlines {

// One line of a table: a policy against another in one set-up.
struct Row {
    std::string setup;
    std::string policy;
    std::string against;
    double coverage = 0;    // all-reduces on the first link / compute
    double seconds = 0;     // per iteration
    double reference = 0;   // of `against`
    double updates = 1;     // per iteration
    std::uint32_t age = 0;  // iterations, oldest gradient
    double speed_up() const { return reference / seconds; }
};

// DeFT on two links (the second slower by 1.65) over ByteScheduler and US-Byte on the first, for a
// model at one coverage rate. `capped`: within deft's own caps (delay 1, merge 2), else as the
// paper, where nothing but the knapsacks limits staleness.
std::vector<Row> deft_rows(const std::string& model, double coverage, bool capped);

// DeAR over the fastest of the job as it is, MG-WFBP and ByteScheduler; `link` is a preset.
Row dear_row(const std::string& model, const std::string& link, std::uint32_t gpus);

// The systems as they were measured (perf/anchors: one set of constants for all, fitted at 8 to 32
// GPUs), in seconds per iteration, and beside them DeAR and US-Byte, which were not measured: with
// the start-ups, the launch cost and the optimizer of WFBP. `model` and `link` are indices of
// perf/anchors/ddl_benchmarks.h.
struct SystemsRow {
    std::string setup;
    std::uint32_t gpus = 0;
    double wfbp = 0, bytescheduler = 0, mg_wfbp = 0;
    double dear_unfused = 0;  // a message per tensor, as WFBP and ByteScheduler
    double dear_fused = 0;    // the best of its tuner's thresholds, 1 to 256 MB
    double us_byte = 0;
};
SystemsRow systems_row(int model, int link, std::uint32_t gpus);

// US-Byte over `against` ("bytescheduler", "wfbp") at one coverage rate.
Row us_byte_row(const std::string& model, double coverage, std::uint32_t gpus,
                const std::string& against);

// COVAP over the job as it is, on a link of so many bytes per second.
Row covap_row(const std::string& model, double compute_seconds, double rate, std::uint32_t gpus);

}  // namespace deft::headlines
