// SPDX-License-Identifier: Apache-2.0
// The directors of this process.
#pragma once

#include <span>
#include <vector>

#include "deft/deft.h"
#include "shim/control/plan_report.h"
#include "shim/learning/track.h"
#include "shim/nccl/registry.h"
#include "shim/tuning/job_calls.h"

namespace deft::director {

// Gives a communicator whose details are known a director, if its mode plans and its ranks may come
// to an agreement. Any thread.
void introduce(Communicator& communicator, agreement::Council* council) noexcept;

// Frees what communicators that have ended have left, but for the latest ones, which the last
// report tells of. The background thread's, once a turn.
void clean_up() noexcept;

// The next look of the background thread at the communicators of one device. `seen`: their calls
// that may be tuned, since the last look. True while something is under way.
bool tick(int device, Track& track, std::span<const tuning::SeenCall> seen) noexcept;

// The process ends: nobody begins or waits for a lane any more, so that tick() comes back soon. Any
// thread; waits for nobody.
void leave_off() noexcept;
// Lanes are being aborted, on threads of their own. Any thread.
bool aborting() noexcept;

// What came of planning on one device, for its report. The background thread, or the one in exit().
std::vector<PlanFacts> facts(int device);

// deft_should_step(), deft_flush(), deft_stats() of include/deft/deft.h. The first two concern the
// communicators on the device of the calling thread's current context; all of them if there is no
// context, or no communicator on that device.
bool should_step() noexcept;
int flush() noexcept;
// A plan that delays or merges is in force, and the guard looks at it; on the same communicators.
bool late_in_force() noexcept;
void add_up(deft_stats_t& stats) noexcept;

}  // namespace deft::director
