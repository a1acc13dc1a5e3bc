// SPDX-License-Identifier: Apache-2.0
// What one direction of a relayed link does to packets, and the words that say so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace relay {

using Nanoseconds = std::int64_t;

struct Impairments {
    double loss = 0;                  // shares of packets, 0 to 1
    double acknowledgement_loss = 0;  // of TCP's acknowledgements without payload
    double duplicate = 0;
    double reorder = 0;            // this share is held back, so that later ones overtake
    Nanoseconds reorder_by = 0;    // for so long
    Nanoseconds delay = 0;         // of every packet
    Nanoseconds jitter = 0;        // up to so much more; packets keep their order
    double bit_errors = 0;         // one bit flipped, the checksum as it was
    double silent_bit_errors = 0;  // one bit of TCP's payload flipped, the checksum mended
    double resets = 0;             // TCP packets with payload become resets, as middleboxes send
    bool forget = false;           // TCP connections known when this was set vanish, new ones pass
    std::size_t hole = 0;          // IP packets above so many bytes vanish; 0: none
    bool black_hole = false;       // every frame vanishes
    std::uint64_t bit_per_s = 0;   // of IP bytes and Ethernet header; 0: no limit
    Nanoseconds queue = 20'000'000;  // a packet that would wait longer for the rate is dropped
};

// Applies "loss 0.01", "reorder 0.02 3" (milliseconds), "delay 5", "jitter 5", "ackloss 0.3",
// "duplicate 0.01", "biterrors 0.001", "silenterrors 0.001", "resets 0.001", "forget on|off",
// "hole 1000", "blackhole on|off", "rate 100" (Mbit/s), "none" (everything but the rate). Returns
// "" or what is wrong.
std::string impair(Impairments& impairments, const std::vector<std::string>& words);

}  // namespace relay
