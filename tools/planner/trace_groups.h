// SPDX-License-Identifier: Apache-2.0
// The process groups of a PyTorch trace, and which of them sums gradients.
//
// A job with tensor or pipeline parallelism sums on several groups, and only the data-parallel
// group's sums are buckets. Kineto names the groups (PyTorch 2.4 and later); frameworks describe
// them: Megatron "DATA_PARALLEL_GROUP", device meshes "mesh_dp", DDP's own is "default_pg".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deft::tools {

struct TraceGroup {
    std::string name;         // "5"; empty where the trace names none
    std::string description;  // "TENSOR_MODEL_PARALLEL_GROUP"; may be empty
    std::uint32_t ranks = 0;  // 0: the trace does not say
    std::size_t sums = 0;
    std::size_t in_forward = 0;  // of them issued while forward ran
    std::uint64_t bytes = 0;     // of all its sums

    // 5 "TENSOR_MODEL_PARALLEL_GROUP" (60 sums, 480.0 MiB, 8 ranks)
    std::string text() const;
};

// The place of the data-parallel group in `groups`, which is not empty. `wanted`: a name or a
// description that the user has given; empty: the one that is found. Throws InputError, naming
// `file` and the groups, if there is no such group or nothing tells which it is.
std::size_t data_parallel_group(const std::string& file, const std::vector<TraceGroup>& groups,
                                const std::string& wanted);

}  // namespace deft::tools
