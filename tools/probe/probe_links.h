// SPDX-License-Identifier: Apache-2.0
// Every link of this host with every link of one that listens.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tools/probe/probe_result.h"

namespace deft::tools::probe {

// `places`: HOST:PORT, of which the first that answers is taken. `time`: of each flow; there are
// two for each pair of links, one after the other.
HostPair probe_host(const std::vector<std::string>& places, std::chrono::milliseconds time);

}  // namespace deft::tools::probe
