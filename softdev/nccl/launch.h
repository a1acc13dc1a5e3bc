// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <nccl.h>

#include <memory>
#include <set>
#include <vector>

#include "softdev/nccl/communicator.h"
#include "softdev/nccl/program.h"

namespace softdev::nccl {

// One call of the API, checked.
struct Task {
    std::shared_ptr<Communicator> communicator;
    Function function;
    const void* send = nullptr;
    void* receive = nullptr;
    size_t count = 0;
    ncclDataType_t type = ncclInt8;
    int op = -1;  // as the application gave it; -1: none
    Reduction reduction;
    int root = -1;  // root, or peer of a send or receive
    CUstream stream = nullptr;
};

// How a collective will be run.
struct Choice {
    Pattern pattern = Pattern::kRing;
    Protocol protocol = Protocol::kSimple;
    int channels = 1;
};
// NCCL_ALGO, NCCL_PROTO, size, ranks; then what a tuner makes of it, which is asked each time.
Choice choose(const Task& task);

// All tasks of one communicator in one group: what connections they need, and putting them on the
// stream.
class Launch {
public:
    Launch(std::shared_ptr<Communicator> communicator, std::vector<Task> tasks);

    std::string label() const;  // the calls, for reports
    // Throws Error (a receive without its send to itself, ...). Nothing is started.
    std::set<Communicator::Wish> wishes();
    void start();  // after wishes(), and the connections exist; throws Error

private:
    std::shared_ptr<Communicator> communicator_;
    std::vector<Task> tasks_;
    std::vector<Choice> choices_;  // by task; of collectives only
};

}  // namespace softdev::nccl
