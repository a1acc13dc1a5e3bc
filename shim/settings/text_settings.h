// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/config.h"

namespace deft::executor {

// What is wrong with settings that are text to the configuration table but have a grammar:
// DEFT_PREDICT, DEFT_OPTIMIZER, DEFT_LANES, DEFT_PORTS. One line each; empty: nothing. `files`:
// also with DEFT_NCCL_LIB and DEFT_SECRET_FILE, without which the library itself goes on. Any
// thread.
std::vector<TextProblem> text_problems(const Config& config, bool files);

}  // namespace deft::executor
