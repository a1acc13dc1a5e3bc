// SPDX-License-Identifier: Apache-2.0
// What can be planned of one rank's cycle: the gradient calls of one communicator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/model/profile.h"
#include "shim/executor/script.h"
#include "shim/learning/track.h"
#include "shim/nccl/series.h"

namespace deft::director {

// One gradient call of the iteration, as the executor will meet it.
struct Gradient {
    std::uint64_t count = 0;
    int type = 0;
    int op = 0;
    bool in_place = true;
    std::uint64_t mark = 0;  // what the companion says of it: SumMark
    Function function = Function::AllReduce;

    bool operator==(const Gradient&) const = default;
};

struct JobView {
    bool learned = false;          // a cycle is in force; without one the rest means nothing
    std::string reason;            // why nothing can be planned; empty if it can
    Series series = Series::Sums;  // of the calls that are looked at
    const char* beside = nullptr;  // what else the job does with gradients; null: nothing
    int nranks = 0;
    std::vector<Gradient> gradients;     // in call order; all-gathers too, of Series::Shards
    std::vector<std::uint64_t> buckets;  // marks of all buckets in call order, the small ones too
    std::uint64_t signature = 0;         // of the gradients; equal on all ranks
    bool whole = false;                  // Track::whole()
    bool used_map = false;               // DDP tells which parameters were used: doubt_about()
    std::uint64_t start = 0;             // ordinal of a gradient call that began an iteration
    std::uint64_t next = 0;    // of the next call to come, as far as they have been learned
    planner::Profile profile;  // times as measured so far
    bool measured = false;     // enough iterations were timed to plan with
    // No call of many was ever timed: NCCL enqueues those of a nonblocking communicator later, so
    // that no event can be recorded behind them. Then the profile has no times but the iteration's.
    bool untimed = false;
};

// The gradients, as the executor knows them.
std::vector<executor::Shape> shapes_of(const JobView& view);

// Equal for equal calls in equal order.
std::uint64_t signature_of(const std::vector<Gradient>& gradients);

// The place in the track's cycle at which its iteration begins; 0 where it was learned to begin, or
// nothing speaks against it. It may have been learned from the last call of an iteration on, if the
// first iteration was another one and ended with the same call. Between two iterations nothing is
// sent while the optimizer and the forward pass run: such a rest must be four times as long as that
// before the place learned, which waits for a part of the backward pass at the most, and a tenth of
// the iteration. Times of the device, as the host may run ahead by any part of an iteration.
std::size_t beginning_of(const Track& track);
// The same where it is known: the iteration begins with the gradient that many gradients later.
std::size_t beginning_at(const Track& track, std::size_t gradient);

// Makes the gradients begin where another rank's iteration does, if they are the same calls in the
// same order: two ranks that missed different calls at the start may have learned it from different
// places. False if they are not.
bool rotate_to(JobView& view, std::uint64_t signature);

// Why calls that look like gradients must not be delayed, merged or compressed; null if nothing
// speaks for it. float16 carries a scale of its iteration. Others may be no gradients:
// SyncBatchNorm's sums (8 bytes a channel), which backward makes over the gradients' communicator,
// are of less than 64 KiB, and of less than a sixteenth of the largest. So may the one remainder be
// that DDP leaves when it fills its buckets: the last sum, or the first with
// find_unused_parameters, full buckets behind it. (SyncBatchNorm in the head of a model comes first
// too, but DDP's first bucket of 1 MiB is the next then.) One such sum in either place is no doubt;
// one elsewhere is, and so are two (two modules under DDP, or two types of parameters, have a
// remainder each: that cannot be told from here).
const char* doubt_about(const std::vector<Gradient>& gradients);
// The same of an iteration that may be longer than the cycle that was learned, so that sums of
// several of its gradients would be mixed, and of one whose use of parameters varies: with
// find_unused_parameters DDP sums a map of those that were used (int32) in every iteration, and
// leaves the gradients of the others as they are, whatever its buckets got for them. A late or
// merged sum that comes in such an iteration would never be applied.
const char* doubt_about(const JobView& view);

// The same where every call is proven to be a gradient, and so the iteration is what was learned.
const char* doubt_about_proven(const JobView& view);

// Replaces the compute times of `profile`, which may be guesses, by the earliest starts of calls
// since the track's profile was restarted: no call starts before its data are ready, and under a
// plan that does not do the same in each iteration most calls are not held up in one or another.
// False if there were too few iterations.
bool correct_by_starts(const Track& track, planner::Profile& profile);

// The same under a plan whose calls wait for no sum, so that each starts when its data are ready.
// How long forward takes does not show, because it waits for sums: half as long as backward. False:
// as above.
bool correct_by_backward(const Track& track, planner::Profile& profile);

// Looks at the cycle in force, at the calls of one communicator. Pure. Without times, which cost
// sorting, there is no profile.
JobView view_job(const Track& track, std::uint32_t comm_serial, bool times);

}  // namespace deft::director
