// SPDX-License-Identifier: Apache-2.0
// The ports that deft listens on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "topology/interfaces.h"

namespace deft {

// 0 to 0: whichever the kernel gives.
struct PortRange {
    std::uint16_t first = 0;
    std::uint16_t last = 0;
    bool any() const { return first == 0; }
};

// "" or "20000-20999". False for anything else; both ports are from 1 to 65535.
bool parse_ports(std::string_view text, PortRange& range);

// A socket that listens on a port of the range at the address. `make` gives one that is not bound,
// or none, with errno. `port`: the one that it got. None, and why, if that cannot be; where all
// ports of the range are in use, `why` says so.
UniqueFd listen_in(const PortRange& range, const std::function<UniqueFd()>& make,
                   const Address& address, int backlog, std::uint16_t& port, std::string& why);

// The same in the range of this process, DEFT_PORTS.
UniqueFd listen_at(const std::function<UniqueFd()>& make, const Address& address, int backlog,
                   std::uint16_t& port, std::string& why);

}  // namespace deft
