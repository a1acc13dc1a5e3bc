// SPDX-License-Identifier: Apache-2.0
// What a network still holds of a queue pair that is no more: bytes that arrive all the same.
#pragma once

#include <string>

#include "softdev/verbs/nic.h"

namespace softdev::verbs {

class Ghost : public Endpoint {
public:
    /// Sends `bytes` after `wait`, and then leaves the connection to the peer, which closes it.
    static void haunt(Nic& nic, deft::UniqueFd socket, std::string bytes, Clock::duration wait);

    Ghost(Nic& nic, deft::UniqueFd socket, std::string bytes);
    ~Ghost() override;
    void ready(unsigned events) override;

private:
    void start();
    bool send_rest();

    Nic& nic_;
    std::string bytes_;
    std::size_t sent_ = 0;
    bool started_ = false;
    std::uint64_t start_timer_ = 0;
    std::uint64_t end_timer_ = 0;
};

}  // namespace softdev::verbs
