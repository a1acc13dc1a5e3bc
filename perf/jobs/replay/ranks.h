// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "perf/jobs/replay/options.h"

namespace replay {

// Starts this program again as every rank, each a host of its own for NCCL, and waits for them.
// Returns the exit status. They end with this process, however it ends; a signal that asks it to
// end (SIGINT, SIGTERM, SIGHUP) is taken here, so that the folder where the ranks meet goes too:
// 128 and its number.
int start_ranks(const Options& options, int argc, char** argv);

}  // namespace replay
