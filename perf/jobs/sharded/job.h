// SPDX-License-Identifier: Apache-2.0
// A training job whose parameters are sharded, without a framework.
#pragma once

#include <cstdint>
#include <string>

namespace sharded {

struct Options {
    std::string kind = "fsdp";  ///< or fsdp-grouped, hsdp
    int layers = 4;
    std::uint64_t bytes = 6'000'000;  ///< of a layer's parameters, all ranks' together
    double compute_ms = 60;           ///< of an iteration, a third of it forward
    int iterations = 100;
    int rank = 0;         ///< RANK
    int ranks = 1;        ///< WORLD_SIZE
    int local_rank = 0;   ///< LOCAL_RANK: the device
    std::string id_file;  ///< where rank 0 leaves NCCL's unique ids for the others
    std::string json;     ///< rank 0 writes its results there; empty: standard output
};

/// One rank. Throws std::runtime_error.
void run_rank(const Options& options);

}  // namespace sharded
