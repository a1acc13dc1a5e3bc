// SPDX-License-Identifier: Apache-2.0
// One rank of the replayed job, on a GPU or on the software device.
#pragma once

#include "perf/jobs/replay/options.h"
#include "perf/jobs/replay/profile.h"
#include "perf/jobs/replay/schedule.h"

namespace replay {

/// Runs all iterations, buckets as a whole or, where there is a schedule, piece by piece; rank 0
/// prints the results. Returns the exit status: 0 only where all replicas ended with the same
/// bytes. Throws std::runtime_error that names the call that failed.
int run_rank(const Options& options, const Profile& profile, const std::vector<Piece>& schedule);

}  // namespace replay
