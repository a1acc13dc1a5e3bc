// SPDX-License-Identifier: Apache-2.0
// Who has to go when a waiting room is full: used where strangers knock, by the plugin's listening
// sockets and by the ranks' rendezvous.
#pragma once

#include <cstddef>

#include "topology/interfaces.h"

namespace deft {

// The same sender, as far as anybody can tell: the same IPv4 address, or the same /64 of IPv6, of
// which one host has all addresses.
bool same_source(const Address& a, const Address& b);

// The place of the oldest entry of the source that has the most entries. `room` is in order of
// arrival and not empty; `from` gives an entry's Address. Who floods the room so makes way itself.
template <class Room, class From>
std::size_t who_makes_way(const Room& room, From from) {
    std::size_t victim = 0;
    std::size_t most = 0;
    // The oldest of a source sees all of its others behind it. Nobody further back can have more
    // than what is left.
    for (std::size_t i = 0; i < room.size() && room.size() - i > most; ++i) {
        std::size_t same = 0;
        for (std::size_t j = i; j < room.size(); ++j) {
            same += same_source(from(room[i]), from(room[j])) ? 1 : 0;
        }
        if (same > most) {
            most = same;
            victim = i;
        }
    }
    return victim;
}

}  // namespace deft
