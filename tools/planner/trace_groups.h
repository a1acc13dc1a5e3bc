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

    bool is(const TraceGroup& other) const {
        return name == other.name && description == other.description;
    }
    // 5 "TENSOR_MODEL_PARALLEL_GROUP" (60 sums, 480.0 MiB, 8 ranks)
    std::string text() const;
};

// The process groups of a trace by what their kernels do.
struct TraceGroups {
    std::vector<TraceGroup> reduced;    // all-reduces that tell their sizes
    std::vector<TraceGroup> scattered;  // reduce-scatters, of which `bytes` may not tell all
};

// Gradients are summed by reduce-scatter, as FSDP, ZeRO and distributed optimizers do, as far as
// the descriptions tell: not by sequence parallelism alone, which sums activations so.
bool scatters_gradients(const TraceGroups& groups);

// Throws InputError, naming `file`: such a job cannot be planned.
[[noreturn]] void refuse_scattered(const std::string& file);

// The place of the data-parallel group in `groups.reduced`, which is not empty. `wanted`: a name or
// a description that the user has given; empty: the one that is found. Throws InputError, naming
// `file` and the groups, if there is no such group, nothing tells which it is, or the gradients are
// summed by reduce-scatter.
std::size_t data_parallel_group(const std::string& file, const TraceGroups& groups,
                                const std::string& wanted);

// Sums of activations, experts or norms, as the description tells.
bool sums_no_gradients(const TraceGroup& group);

// A kernel of `group` does not tell its size, and that is no matter where group `chosen` of
// `groups.reduced` sums the gradients: it cannot be one of them. `asked`: by the user.
bool is_beside(const TraceGroup& group, const TraceGroups& groups, std::size_t chosen, bool asked);

}  // namespace deft::tools
