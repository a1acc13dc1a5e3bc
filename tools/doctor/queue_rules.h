// SPDX-License-Identifier: Apache-2.0
// What `tc qdisc show` tells of links that somebody has made slower, or lossy. Pure.
#pragma once

#include <map>
#include <string>

namespace deft::tools::doctor {

// By interface: "tbf rate 100Mbit burst 32Kb lat 10ms".
std::map<std::string, std::string> shaped_links(const std::string& text);

}  // namespace deft::tools::doctor
