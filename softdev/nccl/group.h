// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <functional>
#include <memory>

#include "softdev/nccl/launch.h"

namespace softdev::nccl {

// Something that blocks until other ranks come (initialisation, split, ...): runs on a thread of
// its own.
struct Job {
    std::shared_ptr<Communicator> communicator;  // whose nonblocking state it moves
    std::function<void()> run;                   // throws Error
    // When nobody is inside the communicator any more; good: run did not throw.
    std::function<void(bool good)> after = {};
    bool on_caller = false;  // whatever the release does with the jobs of a group
    bool good = false;
};

// Group semantics are per thread: calls between the outermost start and end are kept, nothing
// starts before the end. A call outside any group is a group of one.
void group_start();
// ncclSuccess, ncclInProgress for nonblocking communicators, or throws Error.
ncclResult_t group_end();
int group_depth();
// Where NCCL carries out a single job of its group: from 2.28 on the calling thread.
void on_job_thread(const std::function<void()>& job);
void group_add(Task task);
void group_add(Job job);
// Already told to abort: its end comes with that of the group, all of these side by side.
void group_add_abort(std::shared_ptr<Communicator> communicator);
// Errors inside a group make its end fail with the same code.
void group_note_error(ncclResult_t code);
// Ends the group without starting anything and gives an estimate of the time of its collectives in
// microseconds, -1 for an empty group.
ncclResult_t group_simulate_end(ncclSimInfo_t* info);
// The number of tasks queued for this communicator in this thread's group.
size_t group_queued(const Communicator* communicator);

}  // namespace softdev::nccl
