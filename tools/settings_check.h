// SPDX-License-Identifier: Apache-2.0
// Settings that are texts to the configuration table, looked at before a job is started.
#pragma once

#include <vector>

#include "base/config.h"

namespace deft::tools {

// What a job would refuse on this host: texts that do not parse, DEFT_INTERFACES that the host does
// not have, DEFT_NCCL_LIB that cannot be read. A TextCheck.
std::vector<TextProblem> text_settings_problems(const Config& config);

// The companion has something to do in a PyTorch job.
bool wants_companion(const Config& config);

}  // namespace deft::tools
