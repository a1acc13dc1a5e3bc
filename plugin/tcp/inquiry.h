// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugin/core/peer_evidence.h"
#include "plugin/tcp/tcp_dialer.h"

namespace deft::net {

// Asks the process of a sender, over one link, whether it still has its end of a connection.
class Inquiry {
public:
    Inquiry(std::shared_ptr<const Device> device, Route route, const wire::Hello& hello);
    // Begins a question or goes on with one: an answer is given once. Does not block.
    Word ask(Nanos now);

private:
    std::shared_ptr<const Device> device_;
    Route route_;
    wire::Hello hello_;
    std::unique_ptr<TcpDialer> dialer_;  // from the first question on
    bool open_ = false;
    std::uint32_t questions_ = 0;
    Nanos began_ = 0;
    Nanos next_ = 0;
    Nanos pause_ = 0;
};

}  // namespace deft::net
