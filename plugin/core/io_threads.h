// SPDX-License-Identifier: Apache-2.0
// Helper threads that drive connections beside NCCL's own (DEFT_IO_THREADS), for links that one
// core cannot fill. Without them everything happens in NCCL's calls and nothing here is used.
#pragma once

#include <cstddef>

#include "plugin/core/endpoint.h"

namespace deft::net {

// Lets one of `threads` helpers drive the endpoint; started when it has its first, ends after its
// last. False if no thread could be started: the endpoint then goes without. Any thread.
bool help(Endpoint& endpoint, std::size_t threads);

// The helper lets go of it; afterwards it belongs to the caller alone. Waits for at most one
// round of the helper through its connections. Any thread; nothing happens if there is no helper.
void unhelp(Endpoint& endpoint);

// There is something new to do. Takes a system call only if the helper sleeps.
void wake(IoHelper& helper);

// A call of NCCL's into an endpoint: false if a helper is inside, and the call has to come again.
class Call {
public:
    explicit Call(Endpoint& endpoint)
        : endpoint_(endpoint.helper == nullptr ? nullptr : &endpoint),
          inside_(endpoint_ == nullptr || endpoint_->turn.take()) {}
    ~Call() {
        if (endpoint_ != nullptr && inside_) {
            endpoint_->turn.give();
        }
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    explicit operator bool() const { return inside_; }

private:
    Endpoint* endpoint_;
    bool inside_;
};

}  // namespace deft::net
