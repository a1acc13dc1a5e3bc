// SPDX-License-Identifier: Apache-2.0
// The one way that work gets onto a stream: checks what it touches, records it when the stream
// captures, else queues it.
#pragma once

#include "tests/softdev/cuda/thread.h"

namespace softdev {

struct Accesses {
    const softdev_access_t* list = nullptr;
    std::size_t count = 0;
};

CUresult submit(Call& call, const StreamPtr& stream, OpKind kind, std::shared_ptr<Task> task,
                std::string label, Accesses accesses = {});

}  // namespace softdev
