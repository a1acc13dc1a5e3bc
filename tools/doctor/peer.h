// SPDX-License-Identifier: Apache-2.0
// Two hosts try their links: `deft doctor --listen` on one, `deft doctor --peer` on the other; or
// `deft probe` with the same listener.
//
// The listener answers on one port, on all its addresses. A first connection gets a line of JSON
// about the host. Each further one, to one of its links, says by its first byte what is wanted:
// its bytes back, or a flow in one of the two directions (peer_flow.h). What the other side says
// bounds no loop and no memory.
#pragma once

#include <string>

#include "base/config.h"
#include "tools/doctor/facts.h"
#include "tools/doctor/peer_text.h"

namespace deft::tools::doctor {

inline constexpr int kPeerPort = 29430;

struct Listening {
    int port = kPeerPort;      // 0: any
    bool for_program = false;  // a further line says what links there are, and the end of standard
                               // input ends it
    const char* command = "doctor --listen";   // for complaints
    bool names_port = false;                   // what is said there needs the port at all times
    const char* other = "doctor --peer HOST";  // for the other host; ":PORT" follows
};

// Answers until it is interrupted.
int answer_peers(const Listening& how);

// What the side that listens at `where` says of itself. False: `problem` says why not; `known`:
// the resolver has an address of it.
bool ask_info(const std::string& where, PeerInfo& info, std::string& problem, bool& known);

// `where`: HOST or HOST:PORT; "[ADDRESS]:PORT" for IPv6.
PeerFacts ask_peer(const std::string& where, const LinkFacts& links, const Config& config);

}  // namespace deft::tools::doctor
