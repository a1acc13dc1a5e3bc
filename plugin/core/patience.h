// SPDX-License-Identifier: Apache-2.0
// The clock of a connection: how long somebody has waited without a message getting on
// (docs/alive.md). Pure: fed with what is known, asked when it is an error and when a warning is
// due.
#pragma once

#include <algorithm>

#include "plugin/core/clock.h"

namespace deft::net {

class Patience {
public:
    // What the kernel's own TCP bears before it ends a connection, at its default of
    // net.ipv4.tcp_retries2: it gives up at the first retransmission after 924.6 s, and these are
    // two minutes apart by then (ip-sysctl.rst). NCCL's Socket transport bears as much.
    static constexpr Nanos kKernel = 18 * 60 * kSecond;
    static constexpr Nanos kWarnEvery = 30 * kSecond;
    // Of a time in which nobody drove the connection no more than this counts.
    static constexpr Nanos kAway = kSecond;

    explicit Patience(Nanos limit) : limit_(limit) {}

    struct Tick {
        bool waits = false;  // somebody waits for a message that could move
        bool dark = false;   // no link of this host has a carrier
        Nanos expected = 0;  // until what is on its way is acknowledged, as far as was measured
    };
    // About every millisecond, while the connection is driven.
    void tick(Nanos now, const Tick& tick);
    // A chunk was acknowledged. Nothing else renews the clock: not small packets, keep-alives,
    // new connections or what these say.
    void moved() { counted_ = waited_ = 0; }
    // It has been so already, for so long.
    void already(Nanos time) {
        waited_ = std::max(waited_, time);
        counted_ = std::max(counted_, time);
    }

    Nanos waited() const { return waited_; }
    Nanos counted() const { return counted_; }  // without the time in the dark
    bool expired() const;
    // Once for each kWarnEvery of waiting.
    bool warn_due();

private:
    Nanos limit_;
    Nanos last_ = 0;
    Nanos expected_ = 0;
    Nanos waited_ = 0;   // in all
    Nanos counted_ = 0;  // while a link of this host had a carrier
    Nanos warned_ = 0;   // as of the last warning
};

}  // namespace deft::net
