// SPDX-License-Identifier: Apache-2.0
// What `deft probe` has measured. Values only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/doctor/peer_flow.h"

namespace deft::tools::probe {

struct ProbedLink {
    std::string name;
    int mtu = 0;                  // bytes; 0: unknown
    std::int64_t speed_mbps = 0;  // nominal; 0: unknown
};

// One link of the first host and one of the second.
struct LinkPair {
    std::string from, to;                  // names of the links
    std::string from_address, to_address;  // empty: they have none of one family
    bool one_network = false;              // else a router would have to help
    std::string problem;                   // why nothing, or only little, passes
    std::optional<double> least_round_trip_s, median_round_trip_s;
    std::optional<doctor::Flow> there, back;  // from first to second host, and back
};

struct HostPair {
    std::string from, to;  // names of the hosts
    std::string problem;   // why nothing was measured
    std::string from_version, to_version;
    std::vector<ProbedLink> from_links, to_links;
    std::vector<LinkPair> links;
};

struct ProbeResult {
    std::vector<HostPair> pairs;
    std::vector<std::string> problems;  // one line each, of hosts that could not be asked
};

// 0: all is well. 1: links that share a network, or all ways of a link, do not pass all bytes, or
// more than one segment in a thousand is sent again, or the hosts differ. 3: a host gave no answer.
int exit_code(const ProbeResult& result);

std::string human_text(const ProbeResult& result);
std::string json_text(const ProbeResult& result);
// Adds what another `deft probe --json` has printed. False, and why, if the text is none.
bool add_json(const std::string& text, ProbeResult& result, std::string& problem);

}  // namespace deft::tools::probe
