// SPDX-License-Identifier: Apache-2.0
// The command line and the environment of the replay job.
#pragma once

#include <string>

namespace replay {

struct Options {
    std::string profile;    ///< path
    std::string schedule;   ///< path; empty: whole buckets, and the update waits for all
    bool layers = false;    ///< layers wait for their own gradients
    bool look = false;      ///< at what the update of each iteration gets
    double time_scale = 1;  ///< of compute
    double size_scale = 1;  ///< of gradients
    int iterations = 100;   ///< with all-reduces
    int alone = 5;          ///< before those, without: how long compute really takes
    int skip = 5;           ///< iterations with all-reduces left out of the summary
    int ahead = 1;          ///< iterations the host may be ahead of the device
    int rank = -1;          ///< RANK; -1: this process starts the ranks
    int ranks = 0;          ///< WORLD_SIZE, or --ranks
    int local_rank = 0;     ///< LOCAL_RANK: the device
    std::string id_file;    ///< where rank 0 leaves NCCL's unique id for the others
    std::string json;       ///< rank 0 writes its results there; empty: standard output
};

/// False where help was asked for and given. Throws InputError.
bool parse(int argc, char** argv, Options& options);

}  // namespace replay
