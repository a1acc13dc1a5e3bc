// SPDX-License-Identifier: Apache-2.0
// The scheduling policies by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/model/plan.h"

namespace deft::planner {

struct Policy {
    const char* name;
    Plan (*make)(const Profile&, const Fabric&, const Options&);
    bool keeps_numbers;   // every update gets its own iteration's whole gradient
    const char* summary;  // one line for people
};

// Every policy, `best` last.
const std::vector<Policy>& policies();
const Policy* find_policy(std::string_view name);

// Runs a policy and completes its plan: predicted times, the job as it is beside them, the verdict.
// Throws std::invalid_argument for an unknown name or a profile or fabric with a problem.
Plan make_plan(std::string_view policy, const Profile& profile, const Fabric& fabric,
               const Options& options = {});

// One file each. They fill in what evaluate() needs and call it.
Plan plan_none(const Profile&, const Fabric&, const Options&);
Plan plan_wfbp(const Profile&, const Fabric&, const Options&);
Plan plan_mg_wfbp(const Profile&, const Fabric&, const Options&);
Plan plan_bytescheduler(const Profile&, const Fabric&, const Options&);
Plan plan_us_byte(const Profile&, const Fabric&, const Options&);
Plan plan_dear(const Profile&, const Fabric&, const Options&);
Plan plan_deft(const Profile&, const Fabric&, const Options&);
Plan plan_covap(const Profile&, const Fabric&, const Options&);
Plan plan_edf(const Profile&, const Fabric&, const Options&);
Plan plan_fewest_links(const Profile&, const Fabric&, const Options&);
Plan plan_best(const Profile&, const Fabric&, const Options&);

// Not a policy of its own: generations of `merge` iterations, sent as their gradients become ready
// in the last of them, cut over all links, and used `delay` iterations later. merge >= 1.
Plan plan_generations(const Profile&, const Fabric&, const Options&, std::uint32_t merge,
                      std::uint32_t delay);

}  // namespace deft::planner
