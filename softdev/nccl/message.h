// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "softdev/nccl/launch.h"
#include "softdev/nccl/operation.h"

namespace softdev::nccl {

// One send or receive; AlltoAll, Gather and Scatter are made of them, as in NCCL.
struct Message {
    int peer;
    bool sending;
    const std::byte* from;  // sending
    std::byte* to;          // receiving
    size_t bytes;
};

bool is_message(const Task& task);
std::vector<Message> messages_of(const Task& task);

// All messages of a group, side by side; those between the same two ranks in order. A send to
// itself meets the receive of the same place in the order. Throws Error(ncclInvalidUsage) when they
// do not pair.
Work message_work(Communicator& communicator, const std::vector<Task>& tasks,
                  std::vector<Operation::Announcement>& announcements);

}  // namespace softdev::nccl
