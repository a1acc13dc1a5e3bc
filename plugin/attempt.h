// SPDX-License-Identifier: Apache-2.0
// One attempt to connect: from a peer's handle to a Sender that is establishing itself.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/connection.h"
#include "plugin/core/sender.h"
#include "plugin/tcp/device.h"
#include "plugin/tcp/tcp_dialer.h"
#include "plugin/tcp/wire.h"

namespace deft::net {

struct Attempt {
    wire::Secret secret;
    std::unique_ptr<Sender> sender;
    // Before that, when the handle had no room for all of the peer's endpoints: asking for them.
    struct Question {
        std::unique_ptr<TcpDialer> dialer;
        bool failed = false;
    };
    std::vector<Question> asking;
    Nanos ask_again = 0;
    wire::Handle handle;
    std::uint32_t questions = 0;
    ConnectionOptions options;
    Nanos began = 0;  // asking, or last reached the peer's host
    Nanos last_poll = 0;
    Nanos missed = 0;  // since when nobody is seen to poll it; 0: somebody does
};

// Both return an ncclResult_t value, and leave `attempt.sender` empty while the peer is being
// asked.
int start_attempt(const std::shared_ptr<const Device>& device, ConnectionOptions options,
                  const wire::Handle& handle, Nanos now, Attempt& attempt);

// Goes on asking; once there is an answer, or none for too long, begins with what is known.
int poll_asking(const std::shared_ptr<const Device>& device, Nanos now, Attempt& attempt);

}  // namespace deft::net
