// SPDX-License-Identifier: Apache-2.0
// What this host's firewall stops.
#pragma once

#include <string>
#include <vector>

namespace deft::tools::doctor {

// Rules and policies of a ruleset (`nft list ruleset`, `iptables-save`) that stop TCP from others.
// Pure.
std::vector<std::string> stopping_rules(const std::string& ruleset);

}  // namespace deft::tools::doctor
