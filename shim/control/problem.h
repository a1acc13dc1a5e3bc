// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shim/executor/lanes.h"

namespace deft::director {

// Why something cannot be done, and whether that may change; empty if it can.
struct Problem {
    std::string why;
    bool may_pass = false;
    bool timed_out = false;          // which leaves threads and memory behind in NCCL
    bool lanes_made = false;         // this rank has its lanes
    executor::Lane* lane = nullptr;  // to be aborted once the other ranks know of the problem
    bool empty() const { return why.empty(); }
};

}  // namespace deft::director
