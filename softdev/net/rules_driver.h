// SPDX-License-Identifier: Apache-2.0
// NCCL's rules for network plugins as executable scenarios: two sides drive one plugin the way NCCL
// may, and every byte, size and result is checked. Used on every plugin and table version.
//
// A scenario is run by both sides at once, as two threads with two communicators or as two
// processes:
//     for (const Scenario& scenario : rules_scenarios())
//         EXPECT_EQ(run_in_threads(scenario, options), "") << scenario.name;
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "softdev/net/stream.h"

namespace softdev::net {

struct RulesOptions {
    uint64_t seed = 1;
    size_t largest = 1 << 20;    // bytes of the largest message, at least 64 KiB
    int rounds = 3;              // of the random scenarios
    int patience_s = 60;         // without progress: the plugin hangs
    bool reports_errors = true;  // false: a lost peer may also leave requests pending for ever
    int traffic_class = DEFT_NET_TRAFFIC_CLASS_UNDEF;
};

// How the two sides agree on handles and steps: a socket pair, across threads or processes.
class Rendezvous {
public:
    explicit Rendezvous(deft::UniqueFd fd, int patience_s)
        : fd_(std::move(fd)), patience_s_(patience_s) {}
    std::vector<Handle> exchange(const std::vector<Handle>& ours);
    void barrier() { exchange({}); }

private:
    deft::UniqueFd fd_;
    int patience_s_;
};

struct Side {
    int index;  // 0 or 1
    CommNet& net;
    NetRegistry& registry;
    Rendezvous& peer;
    const RulesOptions& options;
    std::mt19937_64 shared;  // gives both sides the same numbers, while they draw alike

    // Connections both sides agree on: side 0 has `outgoing` to side 1, which has `incoming` back.
    Connections connect(size_t outgoing, size_t incoming);
    size_t random_size(std::mt19937_64& random) const;  // 0, 1, largest, anything between
    std::chrono::seconds patience() const { return std::chrono::seconds(options.patience_s); }
};

struct Scenario {
    const char* name;
    void (*run)(Side& side);  // throws DriveError
};

const std::vector<Scenario>& rules_scenarios();

// Empty if all rules were kept, else what went wrong. The environment chooses the plugin.
std::string run_in_threads(const Scenario& scenario, const RulesOptions& options);
std::string run_in_processes(const Scenario& scenario, const RulesOptions& options);

// What a device's properties must be like; throws DriveError.
void check_properties(const CommNet& net, int device);

}  // namespace softdev::net
