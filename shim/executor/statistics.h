// SPDX-License-Identifier: Apache-2.0
// What the executor measures of the gradients of one iteration.
#pragma once

#include <cstdint>

namespace deft::executor {

// Where there is nothing to compare with.
inline constexpr double kNoCosine = 2;

// Of what the lanes carried in one iteration of the job, on this rank.
struct Statistics {
    std::uint64_t iteration = 0;  // since the executor was armed
    bool complete = false;        // all bytes measured, before and after; else a window, after only
    double local_square = 0;      // squared norm of what this rank contributed; complete only
    double reduced_square = 0;    // squared norm of the reduced sums
    std::uint64_t bytes = 0;      // measured after the reduction
    double merged = 1;            // gradients in one sum, mean over bytes
    std::uint64_t not_finite = 0;  // values of the reduced sums that are NaN or infinite
    // Of the angles between these reduced sums and those of the update before, and of that six
    // updates before (executor/correlation.h): -1 to 1, or kNoCosine. Equal on ranks that have
    // measured the same updates.
    double cosine_before = kNoCosine;
    double cosine_earlier = kNoCosine;
};

// What the job's companion tells of one iteration of its training, on this rank
// (deft_note_training()). NaN where something is not known.
struct Training {
    std::uint64_t iteration = 0;  // of the companion's module, the same on all ranks
    bool late = false;            // a plan that delays or merges was in force before its backward
    double loss = 0;
    double norm = 0;  // of the gradients that its update got, before any clipping; equal on all
                      // ranks
    double rate = 0;  // the learning rate
};

}  // namespace deft::executor
