// SPDX-License-Identifier: Apache-2.0
// Two hosts try their links: `deft doctor --listen` on one, `deft doctor --peer` on the other.
//
// The listener answers on one port, on all its addresses. A first connection gets a line of JSON
// about the host; each further one, to one of its links, is sent back what it sends. What the
// other side says bounds no loop and no memory.
#pragma once

#include <string>

#include "base/config.h"
#include "tools/doctor/facts.h"

namespace deft::tools::doctor {

inline constexpr int kPeerPort = 29430;

// Answers until it is interrupted. `port` 0: kPeerPort.
int answer_peers(int port);

// `where`: HOST or HOST:PORT; "[ADDRESS]:PORT" for IPv6.
PeerFacts ask_peer(const std::string& where, const LinkFacts& links, const Config& config);

}  // namespace deft::tools::doctor
