// SPDX-License-Identifier: Apache-2.0
// What is tried for a call, and what the times say. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shim/tuning/job_calls.h"

namespace deft::tuning {

// What a trial may change.
struct Freedom {
    int nranks = 0;
    bool algorithms = true;  // others than NCCL's own, which take memory for their connections
    bool channels = true;
    bool reorder = true;  // numbers may be added in another order
};

// Algorithms that need no special hardware. Where NCCL's own choice is another, nothing is changed.
bool ordinary(int algorithm);

// Ways to carry out the call, NCCL's own choice first. One alone: there is nothing to try.
std::vector<CollectiveChoice> ways(const JobCalls::Repeated& call, const Freedom& freedom);
// The same with fewer channels, which leave more of the device to the job's computing. own: what
// NCCL would take by itself.
std::vector<CollectiveChoice> narrower(const Key& key, const CollectiveChoice& choice,
                                       const CollectiveChoice& own, const Freedom& freedom);

// Times of one rank's trial, by entry and sample, in nanoseconds; 0: not known.
using Times = std::vector<std::vector<std::uint64_t>>;
std::vector<std::byte> encode(std::uint64_t serial, const Times& times);
bool decode(std::span<const std::byte> bytes, std::uint64_t& serial, Times& times);

// A call takes as long as on the rank that came last: the others have waited for it.
Times least(const std::vector<Times>& of_ranks);

// Of a part of a comparison: when the first call of each window was made, kWindows + 1 of them. The
// time of an iteration in each second window, as a part of that in its neighbours. Empty: it cannot
// be told.
std::vector<double> ratios_of(const std::vector<std::int64_t>& begins);
// None of them may be missing.
double median_of(std::vector<double> ratios);
// Their median tells whether they are above `most`. Those of one part tell where all of them lie on
// one side: were they as often above as below, that would be so in 1 of 32 comparisons on each.
bool clear(const std::vector<double>& ratios, double most);
// What has to be gained is more than what other communicators of the job do to a comparison. Fewer
// channels alone are kept for what they leave to the job's computing, so an iteration that takes as
// long is enough.
inline constexpr double kGain = 0.99;
inline constexpr double kAboutAsLong = 1.005;

}  // namespace deft::tuning
