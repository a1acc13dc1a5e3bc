// SPDX-License-Identifier: Apache-2.0
// Where the records of DEFT_OUT go.
#pragma once

#include <string>

#include "base/config.h"

namespace deft {

// DEFT_OUT. Where nobody has named it and the working folder is on a network file system, the same
// name in $TMPDIR, or /tmp/deft-<uid>: thousands of hosts do not write into one folder then. Any
// thread; waits for the file system.
std::string record_pattern(const Config& config);

// A file system of this type (statfs(2), f_type) is another machine's. Pure.
bool is_network_file_system(long type);

}  // namespace deft
