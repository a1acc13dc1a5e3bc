// SPDX-License-Identifier: Apache-2.0
// Ethernet frames as the relay looks at them: where IP and TCP begin, and how a bit is flipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace relay {

using Frame = std::vector<unsigned char>;

struct Layout {
    bool ip = false;           // IPv4 or IPv6; nothing else below is set without
    bool tcp = false;          // TCP whose header is whole, in an unfragmented packet
    std::size_t ip_begin = 0;  // offsets from the frame's first byte
    std::size_t tcp_begin = 0;
    std::size_t payload_begin = 0;
    std::size_t end = 0;  // behind the packet's last byte; padding may follow
    bool pure_acknowledgement = false;
    std::uint64_t connection = 0;  // of TCP: the same for both directions of one connection

    std::size_t ip_bytes() const { return end - ip_begin; }
    std::size_t payload_bytes() const { return end - payload_begin; }
};

// A frame that contradicts itself (a length beyond its end) is no IP here.
Layout layout_of(const Frame& frame);

// Flips one bit behind the Ethernet header, chosen by `random`. TCP's or IP's checksum then tells.
void flip_a_bit(Frame& frame, const Layout& layout, std::uint64_t random);

// Flips one bit of the TCP payload and mends the checksum, as a bad memory cell of a switch or NIC
// does that computes it anew. False, and nothing is changed, if there is no payload.
bool flip_a_bit_silently(Frame& frame, const Layout& layout, std::uint64_t random);

// Turns a TCP packet into a reset, as a middlebox does to end a connection; the checksum is mended.
void make_reset(Frame& frame, const Layout& layout);

// For tests: is the TCP checksum of an IPv4 packet right?
bool tcp_checksum_is_right(const Frame& frame, const Layout& layout);

}  // namespace relay
