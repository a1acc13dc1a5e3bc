// SPDX-License-Identifier: Apache-2.0
// What one training iteration looks like: the gradient buckets and the compute that makes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deft::planner {

// A measured time in seconds: median and 10th/90th percentile over n samples. n = 0: not measured.
struct Spread {
    double median = 0;
    double p10 = 0;
    double p90 = 0;
    std::uint64_t n = 0;

    bool measured() const { return n != 0; }
    bool operator==(const Spread&) const = default;
};

// One gradient bucket, the unit a job reduces at once.
struct Bucket {
    std::string name;
    std::uint64_t bytes = 0;
    double ready = 0;       // seconds after the start of backward until the gradient exists
    double forward = 0;     // seconds of forward compute of the layers whose weights it updates
    Spread ready_spread{};  // of `ready`, as measured
    Spread transfer{};      // duration of its all-reduce in the job as it is, as measured

    bool operator==(const Bucket&) const = default;
};

// Buckets stand in send order: buckets[0] is ready first (output side of the model), the last one
// belongs to the input side and is needed first by the next forward.
//
// Time runs in cycles: backward of iteration t, then the update, then forward of iteration t+1.
// Forward computes bucket n-1, n-2, ..., 0 and then whatever of `forward` no bucket owns (a head
// whose weights are synchronised elsewhere).
struct Profile {
    std::string name;
    std::string source;  // where the figures come from: "model", "observe", "trace"
    std::vector<Bucket> buckets;
    double forward = 0;       // seconds from the end of backward (and update) to the next backward
    double backward = 0;      // seconds
    Spread iteration{};       // of the job as it is, as measured
    std::uint32_t ranks = 0;  // of the job the figures were taken from; 0 unknown

    bool operator==(const Profile&) const = default;

    std::size_t size() const { return buckets.size(); }
    double compute() const { return forward + backward; }
    std::uint64_t bytes() const;

    // Seconds of forward that remain when bucket i's weights are first needed: the tail q_i.
    std::vector<double> tails() const;

    // The same job without overlap: every gradient exists at the end of backward only (BSP).
    Profile without_overlap() const;

    // The first thing wrong with it, naming the field; empty if it can be planned.
    std::string problem() const;
};

}  // namespace deft::planner
