// SPDX-License-Identifier: Apache-2.0
// The paths of one receiver, as its senders come in through the door of a TcpAcceptor.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

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
    // `first`: who came in first and made this connection. `port_speeds`: of the RDMA ports that
    // the admission offers, Mbit/s, for the welcome.
    TcpPathSource(std::unique_ptr<Admission> admission, Admission::Guest first, Nanos link_timeout,
                  std::vector<std::int64_t> port_speeds = {});

    bool next(Nanos now, const Control& state, Admitted& admitted) override;
    Carrier carrier(std::size_t path) const override;
    Word ask(std::size_t path, Nanos now) override;

    // One who has come, and was welcomed, to begin a path of another kind; next() finds them.
    struct Beginning {
        Admission::Guest guest;
        std::uint64_t posted = 0;  // as the welcome said
    };
    bool take_beginning(Beginning& beginning);

private:
    bool welcome(const Admission::Guest& guest, const Control& state) const;
    void admit(Admission::Guest& guest, Admitted& admitted);
    std::unique_ptr<Inquiry> inquiry(const Admission::Guest& guest) const;

    std::unique_ptr<Admission> admission_;
    Admission::Guest first_;
    std::vector<std::int64_t> port_speeds_;
    std::vector<Beginning> beginnings_;
    bool have_first_;
    Nanos dead_after_;
    std::array<const std::string*, wire::kMaxPaths> links_{};  // interface of each path
    std::array<std::unique_ptr<Inquiry>, wire::kMaxPaths> inquiries_;
};

}  // namespace deft::net
