// SPDX-License-Identifier: Apache-2.0
// The one way that work gets onto a stream: checks what it touches, records it when the stream
// captures, else queues it.
#pragma once

#include "softdev/cuda/history.h"
#include "softdev/cuda/thread.h"

namespace softdev {

struct Work {
    OpKind kind = OpKind::task;
    std::shared_ptr<Task> task;
    std::string label;
    Accesses accesses;
    bool checked = false;  ///< the ranges were checked already
    bool tells = false;    ///< host threads may learn from it that it ran: see Op::follows
};

/// On success `op`, if wanted, gets the operation (nullptr when it was captured).
CUresult submit(Call& call, const StreamPtr& stream, Work work, OpPtr* op = nullptr);

/// Refuses what capture forbids on this stream; CUDA_SUCCESS when the operation may be queued or
/// captured.
CUresult may_submit(const Stream& stream);

/// An event record or wait on a stream that does not capture.
void record_event(const StreamPtr& stream, const std::shared_ptr<Event>& event);
void wait_event(const StreamPtr& stream, const Event& event);

}  // namespace softdev
