// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "topology/base/config.h"

namespace deft::tools {

// What is wrong with settings that are text to the configuration table but have a grammar, or name
// a file: DEFT_PREDICT, DEFT_OPTIMIZER, DEFT_NCCL_LIB. One line each; empty: nothing. Any thread.
std::vector<std::string> text_problems(const Config& config);

}  // namespace deft::tools
