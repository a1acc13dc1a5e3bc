// SPDX-License-Identifier: Apache-2.0
// What a PyTorch trace tells of a job's sums: the events, read and checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/planner/fields.h"
#include "tools/planner/trace_groups.h"

namespace deft::tools {

// Times are microseconds of the trace.
struct Collective {
    double start = 0;
    double duration = 0;
    std::uint64_t bytes = 0;
    std::uint64_t external = 0;  // links the kernel to the operator that launched it
    std::size_t group = 0;       // its place in one of the lists of `groups`
};

struct Span {
    double start = 0;
    double end = 0;
};

// A kernel that does not tell what it sums.
struct Unsized {
    double start = 0;
    TraceGroup group;  // without a name where the kernel does not tell that either
};

struct TraceEvents {
    // Throws InputError, naming `name` and the field. NCCL kernels and steps by their start.
    TraceEvents(const std::string& name, const nlohmann::json& trace);

    // The host was in a forward pass.
    bool in_forward(double at) const;
    // When the host issued it, microseconds; NULL: the trace does not tell.
    const double* issue(const Collective& one) const;
    // Of the job, as the trace tells; 0: it does not.
    std::uint32_t world_size() const;

    TraceGroups groups;
    std::vector<Collective> kernels;   // all-reduces that tell their sizes
    std::vector<Collective> scatters;  // reduce-scatters
    std::vector<Unsized> unsized;
    std::vector<Span> steps;
    std::vector<Span> backwards;
    std::vector<Span> forwards;

private:
    void read(const Field& event);
    void read_kernel(const Field& event);
    void read_scatter(const Field& event);
    void read_annotation(const Field& event, const std::string& name);

    const Field root_;
    std::map<std::uint64_t, double> issued_;  // by external id
};

}  // namespace deft::tools
