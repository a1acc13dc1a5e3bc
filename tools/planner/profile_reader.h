// SPDX-License-Identifier: Apache-2.0
// Profiles from files and model names.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "planner/model/profile.h"

namespace deft::tools {

// How a trace is read.
struct TraceOptions {
    std::string group;  // process group whose sums are gradients, by name or description; empty:
                        // the data-parallel one, as far as it can be told
    std::vector<std::string>* notes = nullptr;  // gets what was left out, a line each
    std::int64_t* rank = nullptr;  // gets the rank whose file it is, where the file says that
};

// "model:NAME[,batch=N][,seconds=S][,tflops=T][,efficiency=E][,bucket_mb=M][,layers]", or a file:
// an observe report, a PyTorch profiler trace (plain or gzip), or a profile written by
// `deft plan --save-profile`. Throws InputError naming file and field.
planner::Profile read_profile(const std::string& what, const TraceOptions& options = {});

// The same from text; `name` stands for the file in errors.
planner::Profile profile_from_text(const std::string& name, const std::string& text,
                                   const TraceOptions& options = {});

planner::Profile profile_from_model(const std::string& what);
planner::Profile profile_from_observe(const std::string& name, const nlohmann::json& report);
planner::Profile profile_from_trace(const std::string& name, const nlohmann::json& trace,
                                    const TraceOptions& options);
// Whether profile_from_trace() looks at an event, or has to complain of it.
bool trace_event_matters(const nlohmann::json& event);
planner::Profile profile_from_json(const std::string& name, const nlohmann::json& profile);
nlohmann::json profile_to_json(const planner::Profile& profile);

// Median and 10th/90th percentile, neighbours interpolated. Empty: not measured.
planner::Spread spread_of(std::vector<double> values);

}  // namespace deft::tools
