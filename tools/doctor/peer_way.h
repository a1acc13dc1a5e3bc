// SPDX-License-Identifier: Apache-2.0
// One way between a link of this host and one of another, on which somebody listens.
#pragma once

#include <string>

#include "base/unique_fd.h"
#include "tools/doctor/facts.h"
#include "tools/doctor/peer_text.h"
#include "topology/interfaces.h"

namespace deft::tools::doctor {

struct Way {
    const Interface& local;
    Address from;        // of `local`
    std::string remote;  // name of the other link
    Address to;          // of that link
    int port = 0;
};

// Addresses of two links that are in one network; false: there are none.
bool in_one_network(const Interface& local, const PeerInfo::Link& remote, Address& from,
                    Address& to);

// A connection over this way, bound to its link. None, and why.
UniqueFd open_way(const Way& way, std::string& error);

// Whether 64 bytes, and 64 KiB, come back over it. It takes 9 s at most.
PeerLink try_way(const Way& way);

}  // namespace deft::tools::doctor
