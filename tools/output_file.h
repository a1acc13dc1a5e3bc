// SPDX-License-Identifier: Apache-2.0
// Files whose names are patterns (DEFT_OUT, DEFT_LOG_FILE), and the folder of DEFT_METRICS: can
// they be written?
#pragma once

#include <string>

#include "base/config.h"

namespace deft::tools {

// Empty, or why a file of this pattern could not be written later, when the job has run for hours.
// `make`: a folder that is not there will be made.
std::string unwritable(const Config& config, Key key, bool make);

// Empty, or why ranks could keep no file in the folder of DEFT_METRICS. The job does without it.
std::string unusable_metrics(const Config& config);

// Whether the pattern names a file in one folder, the same for all ranks and processes of a host.
bool one_folder(const std::string& pattern);

// Makes that folder, and those above it. Empty, or why it could not.
std::string make_folder(const std::string& pattern);

}  // namespace deft::tools
