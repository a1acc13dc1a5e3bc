// SPDX-License-Identifier: Apache-2.0
// `deft plan`, `deft sim`, `deft advise`: their options and what they do. One file each.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/options.h"
#include "planner/model/profile.h"
#include "tools/planner/timeline.h"

namespace CLI {
class App;
}

namespace deft::tools {

// What all three read.
struct PlannerOptions {
    std::string profile;
    std::string group;                // of a trace: the process group that sums gradients
    std::vector<std::string> inputs;  // advise
    std::string links;
    std::uint32_t ranks = 0;  // 0: of the profile, else 16
    std::uint32_t nodes = 0;  // of a topology, all its GPUs each; 0: as the ranks need
    std::string policy;
    std::uint32_t max_delay = 1;
    std::uint32_t max_merge = 2;
    std::string merge = "turns";
    std::string barrier = "update";
    std::string objective = "progress";
    bool mixed_ages = true;
    double noise_scale = -1, age_price = -1;   // below 0: the planner's own
    double partition_mb = -1, credit_mb = -1;  // below 0: as published
    double jitter = 0;
    double straggler = 1;
    std::vector<std::string> rate_changes;
    std::uint64_t seed = 1;
    bool json = false;
    bool curve = false;  // advise: benefit over the ratio of compute to communication
    std::string svg;
    std::string trace;
    std::string save_profile;
    std::string out;
    std::string check;
    mutable std::set<std::string> said;  // by read(): the files of a job's ranks share notes

    planner::Options options() const;
    // The profile of this file or model; complains of what was left out. Throws InputError.
    planner::Profile read(const std::string& what, std::int64_t* rank = nullptr) const;
    // Throws InputError where --nodes is asked for of links that are no topology.
    std::uint32_t ranks_for(const planner::Profile& profile) const;
    // The links of the job. Throws InputError.
    planner::Fabric fabric(std::uint32_t ranks) const;
    // Nodes that so many ranks are on; 0 if the links do not tell. Throws InputError.
    std::uint32_t nodes_of(std::uint32_t ranks) const;
};

// Adds the three subcommands; each runs and sets `exit_code` from its callback.
struct PlannerCommands {
    PlannerOptions options;
    CLI::App* plan = nullptr;
    CLI::App* sim = nullptr;
    CLI::App* advise = nullptr;

    void add_to(CLI::App& app);
    bool owns(const CLI::App* command) const {
        return command == plan || command == sim || command == advise;
    }
    // Exit code. Errors of the input are complaints, not exceptions.
    int run(const CLI::App* command) const;

private:
    void add_common(CLI::App* command);
    void add_policy(CLI::App* command);
    void add_pictures(CLI::App* command);
};

int plan_command(const PlannerOptions& options);
int sim_command(const PlannerOptions& options);
int advise_command(const PlannerOptions& options);

// "use: 1.31x per iteration, 1.15x to the same loss", the latter where an iteration is worth less.
std::string verdict_text(const planner::Prediction& predicted);

// "best (us-byte)" where `best` took the plan of another policy, "deft (paper)" where a mode has
// the policy's name: the mode does something else.
std::string policy_text(const planner::Plan& plan);

// Writes --svg and --trace where asked. Throws InputError.
void write_pictures(const PlannerOptions& options, const std::vector<Timeline>& timelines);
void write_file(const std::string& path, const std::string& text);

}  // namespace deft::tools
