// SPDX-License-Identifier: Apache-2.0
// Which pairs of addresses this process has found not to reach each other.
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
    static void forget_all();  // tests
};

}  // namespace deft::net
