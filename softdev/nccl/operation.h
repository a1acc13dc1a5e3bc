// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <vector>

#include "softdev/nccl/call_check.h"
#include "softdev/nccl/communicator.h"
#include "softdev/nccl/kernel.h"

namespace softdev::nccl {

// What one launch leaves on a stream: runs on the stream's worker thread, in the role of NCCL's
// kernel.
struct Operation {
    struct Announcement {
        CallHeader call;
        int peer = -1;  // of a send or receive; -1: a collective
    };
    std::shared_ptr<Communicator> communicator;
    std::string label;
    std::vector<Work> works;
    std::vector<Announcement> announcements;
    bool captured = false;     // in a graph
    bool begins_late = false;  // when it runs: each time in a graph; what graphs may overtake, too
    bool ran = false;

    // Tells the other ranks and the progress thread what comes. Once per run, in stream order.
    void begin();

    static CUresult run(void* operation);
    static void done(void* operation);  // deletes it

private:
    CUresult run_once(bool allowed);
    CUresult run_works();
    CUresult run_work(const Work& work);
    // Called when nothing moves; true: give up, with *result.
    bool give_up(const Kernel& kernel, Clock::time_point stuck_since, CUresult* result);
};

}  // namespace softdev::nccl
