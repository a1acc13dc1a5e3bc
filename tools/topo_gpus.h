// SPDX-License-Identifier: Apache-2.0
// A host's GPUs, and the NVLinks between them, for people.
#pragma once

#include <string>

#include "topology/discovery/machine.h"

namespace deft::tools {

std::string gpu_table(const discovery::Machine& machine);
// Which GPUs NVLink joins, with how many links, at what rate, by switch or in pairs. Empty: none.
std::string nvlink_text(const discovery::Machine& machine);
// NVLink beyond this host; empty: none.
std::string domain_text(const discovery::Machine& machine);

}  // namespace deft::tools
