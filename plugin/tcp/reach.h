// SPDX-License-Identifier: Apache-2.0
// Which pairs of addresses this process has found not to reach each other, or by another way.
#pragma once

#include "topology/interfaces.h"

namespace deft::net {

// So that not every new connection waits for the same dead pair again: a pair that is known dead
// is passed over at first and tried in the background. Any thread. Bounded: the oldest is
// forgotten.
class Reach {
public:
    static constexpr std::size_t kMaxPairs = 512;

    static bool known_dead(const Address& own, const Address& peer);
    static void dead(const Address& own, const Address& peer);
    static void alive(const Address& own, const Address& peer);

    // The peer's answers come in through another of this host's links in the same network: a host
    // answers for each of its addresses on each card (Linux: arp_ignore=0), and the peer keeps what
    // it hears first. A socket that keeps to its link (SO_BINDTODEVICE) hears none of them.
    static bool astray(const Address& own, const Address& peer);
    static void went_astray(const Address& own, const Address& peer);
    static void forget_all();  // tests
};

}  // namespace deft::net
