// SPDX-License-Identifier: Apache-2.0
// The folder of DEFT_METRICS, which jobs of different users share.
#pragma once

#include <string>

namespace deft {

// Where the metrics of a rank of this process stand.
std::string metrics_path(const std::string& folder, int rank);

// Before a file is new in its folder: removes what jobs that were killed have left there. Empty: it
// may be made; else why not.
std::string make_room(const std::string& path);

// Replaces the file in one step by one that everybody may read. Returns 0 or errno.
int write_metrics(const std::string& path, const std::string& text);

}  // namespace deft
