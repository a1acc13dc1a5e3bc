// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/firewall_rules.h"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace deft::tools::doctor {
namespace {

bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](std::string_view word) { return text.find(word) != text.npos; });
}

// Of iptables-save, which names the chain in each line.
bool stops_by_itself(std::string_view line) {
    const bool policy = line.starts_with(":INPUT DROP") || line.starts_with(":OUTPUT DROP");
    const bool rule = line.starts_with("-A INPUT") || line.starts_with("-A OUTPUT");
    return policy || (rule && has_any(line, {"-j DROP", "-j REJECT"}));
}

}  // namespace

std::vector<std::string> stopping_rules(const std::string& ruleset) {
    std::vector<std::string> rules;
    std::istringstream text(ruleset);
    std::string chain;
    bool ends_here = false;  // of nft: the chain filters what this host gets or sends
    for (std::string line; std::getline(text, line);) {
        line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
        if (line.starts_with("chain ")) {
            chain = "chain " + line.substr(6, line.find(' ', 6) - 6) + ": ";
            ends_here = false;
        } else if (has_any(line, {"hook input", "hook output"})) {
            ends_here = true;
        }
        // Of other protocols and of broken packets: no concern of the job's. What is told to who is
        // rejected (`--reject-with icmp-host-prohibited`) says nothing of the packet.
        const std::string_view packet =
            std::string_view(line).substr(0, std::min(line.find("reject"), line.find("REJECT")));
        if (has_any(packet, {"udp", "icmp", "invalid", "INVALID"})) {
            continue;
        }
        if (stops_by_itself(line) || (ends_here && has_any(line, {" drop", "reject"}))) {
            rules.push_back(chain + line);
        }
    }
    return rules;
}

}  // namespace deft::tools::doctor
