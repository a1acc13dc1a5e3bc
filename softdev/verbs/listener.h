// SPDX-License-Identifier: Apache-2.0
// Where the peers' requesters connect to.
#pragma once

#include "softdev/verbs/nic.h"
#include "softdev/verbs/wire.h"

namespace softdev::verbs {

class Listener : public Endpoint {
public:
    explicit Listener(Nic& nic);
    void ready(unsigned events) override;
    std::uint16_t port() const { return port_; }

private:
    Nic& nic_;
    std::uint16_t port_ = 0;
};

/// A connection that has not yet said which queue pair it is for.
class Newcomer : public Endpoint {
public:
    explicit Newcomer(Nic& nic, deft::UniqueFd socket);
    void ready(unsigned events) override;

private:
    void introduce();

    Nic& nic_;
    wire::Hello hello_;
    std::size_t filled_ = 0;
};

}  // namespace softdev::verbs
