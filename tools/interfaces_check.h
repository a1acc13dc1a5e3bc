// SPDX-License-Identifier: Apache-2.0
// DEFT_INTERFACES against the interfaces this host has, before a job is started.
#pragma once

#include <functional>
#include <string>

#include "topology/base/config.h"

namespace deft::tools {

// Empty, or why no interface is left. A name of the list that this host lacks while others match is
// passed to `warn`: one list often serves hosts with different interfaces.
std::string check_interfaces(const Setting& setting,
                             const std::function<void(const std::string&)>& warn);

}  // namespace deft::tools
