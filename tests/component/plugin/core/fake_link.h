// SPDX-License-Identifier: Apache-2.0
// What a fake network does to the paths over one of its links, on a virtual clock.
#pragma once

#include <cstdint>
#include <optional>

#include "plugin/core/clock.h"
#include "plugin/core/path.h"

namespace deft::net::testing {

struct FakeLink {
    double bytes_per_second = 1e9;
    Nanos latency = 20 * kMicrosecond;
    std::int64_t nominal_mbps = 10000;
    bool carrier = true;          // see `sees`
    bool sees[2] = {true, true};  // who is told of the carrier: the sender, the receiver
    int downs_lost = 0;           // so many PathDown that the receiver says here get no room
    bool black_hole = false;      // nothing arrives, nobody is told
    Nanos silence = 0;            // what the kernel says of it when it is lost
    bool one_way = false;         // with black_hole: only what the sender sends is lost
    std::uint32_t narrow = 0;     // chunks larger than this vanish, and all behind them; 0: none
    bool small_helps = false;     // against that: the chunk comes in small packets
    Nanos times_out = 0;          // the kernel ends a connection over which nothing gets; 0: never
    bool hangs = false;           // without carrier, attempts wait as in a black hole
    Nanos accepts_at = 0;         // its host takes connections, the receiver accepts from then on
    bool mute = false;            // the receiver dies without a goodbye
    bool left_to_kernel = false;  // a path was
    bool reserve = false;
    std::uint32_t gives_way_to = 0;  // links whose wire it shares, by bits
    bool half_wrong = false;         // every second attempt goes to an address that nobody has
    // Another host has the peer's address here, and answers so.
    std::optional<Dialer::Result> stranger;
    FakeLink* shares = nullptr;  // the pipe of another link: two paths through one bottleneck
    double together = 1;         // a pipe's rate falls to this part while several paths use it
    std::uint64_t socket_buffer = 256 * 1024;
    // Of a link whose paths write into granted memory (fake_granted.h):
    bool granted = false;
    Nanos repeats = 4 * kMillisecond;        // until its NIC sends again what was not acknowledged
    Nanos retries_for = 400 * kMillisecond;  // then the queue pair goes to the error state
    Nanos late = 0;                      // what was on its way then lands after so long; 0: never
    bool acks_lost = false;              // while everything arrives
    bool out_of_order = false;           // the end of a chunk is there before its beginning
    Nanos retract_takes = 0;             // to put the own queue pair into the error state
    Nanos fence_takes = 0;               // the same at the receiver
    bool no_memory[2] = {false, false};  // nothing can be registered: sender, receiver
    bool grants_lost = false;            // the receiver's, while everything else arrives
    std::uint64_t pieces = 0;            // that were posted

    Nanos busy_until = 0;
    const FakeLink* last_user = nullptr;
    Nanos last_use = -kSecond;
    Nanos crowded_until = 0;
    int connections = 0;
    int attempts = 0;
    bool small = false;       // the latest connection keeps its packets small
    int trials = 0;           // whether full packets pass
    std::uint64_t told = 0;   // control frames of the receiver
    std::uint64_t looks = 0;  // of the sender, for them
    std::uint64_t looked_after = 0;
    Carrier seen[2];
    bool was_down[2] = {false, false};
    // What the kernel of one end would report of the carrier.
    Carrier observe(bool receiver) {
        if (carrier == was_down[receiver] && sees[receiver]) {
            ++(carrier ? seen[receiver].gained : seen[receiver].lost);
            was_down[receiver] = seen[receiver].down = !carrier;
        }
        return seen[receiver];
    }
    FakeLink& pipe() { return shares != nullptr ? *shares : *this; }
    // Of a pipe: what it delivers now that `user` sends.
    double rate_for(const FakeLink& user, Nanos now) {
        constexpr Nanos kRecent = 20 * kMillisecond;
        if (last_user != &user) {
            crowded_until = last_use + kRecent;
        }
        last_user = &user;
        last_use = now;
        return bytes_per_second * (now < crowded_until ? together : 1);
    }
};

inline constexpr double kGbit = 1e9 / 8;  // bytes per second

// Nominally of 10 Gbit/s whatever its rate is, as a veth claims.
inline FakeLink link(double gbit, Nanos latency = 20 * kMicrosecond) {
    FakeLink fake;
    fake.bytes_per_second = gbit * kGbit;
    fake.latency = latency;
    return fake;
}

}  // namespace deft::net::testing
