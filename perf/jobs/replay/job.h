// SPDX-License-Identifier: Apache-2.0
// One rank of the replayed job, on a GPU or on the software device.
#pragma once

#include "perf/jobs/replay/options.h"
#include "perf/jobs/replay/profile.h"

namespace replay {

/// Runs all iterations; rank 0 prints the results. Returns the exit status: 0 only where all
/// replicas ended with the same bytes. Throws std::runtime_error that names the call that failed.
int run_rank(const Options& options, const Profile& profile);

}  // namespace replay
