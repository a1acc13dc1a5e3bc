// SPDX-License-Identifier: Apache-2.0
// DEFT_INTERFACES against the interfaces this host has, before a job is started.
#pragma once

#include <string>

#include "topology/base/config.h"

namespace deft::tools {

// Empty, or what the plugin would refuse DEFT_INTERFACES for on this host. Nothing is wrong with a
// list that is not set.
std::string interfaces_problem(const Config& config);

}  // namespace deft::tools
