// SPDX-License-Identifier: Apache-2.0
// The paths of one receiver, as its senders come in through the door of a TcpAcceptor.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "plugin/core/receiver.h"
#include "plugin/tcp/inquiry.h"
#include "plugin/tcp/tcp_acceptor.h"
#include "plugin/tcp/wire.h"

namespace deft::net {

// Of a silent path, when there are others.
inline constexpr Nanos kDeadAfter = 5 * kSecond;

// The door of a TcpAcceptor, seen by one Receiver.
class TcpPathSource final : public PathSource {
public:
    // `first`: who came in first and made this connection.
    TcpPathSource(std::unique_ptr<Admission> admission, Admission::Guest first, Nanos link_timeout);

    bool next(Nanos now, const Control& state, Admitted& admitted) override;
    Carrier carrier(std::size_t path) const override;
    Word ask(std::size_t path, Nanos now) override;

private:
    bool welcome(const Admission::Guest& guest, const Control& state) const;
    void admit(Admission::Guest& guest, Admitted& admitted);
    std::unique_ptr<Inquiry> inquiry(const Admission::Guest& guest) const;

    std::unique_ptr<Admission> admission_;
    Admission::Guest first_;
    bool have_first_;
    Nanos dead_after_;
    std::array<const std::string*, wire::kMaxPaths> links_{};  // interface of each path
    std::array<std::unique_ptr<Inquiry>, wire::kMaxPaths> inquiries_;
};

}  // namespace deft::net
