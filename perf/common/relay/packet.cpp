// SPDX-License-Identifier: Apache-2.0
#include "perf/common/relay/packet.h"

namespace relay {
namespace {

constexpr std::size_t kEthernet = 14;
constexpr std::size_t kIpv4Least = 20;
constexpr std::size_t kIpv6Header = 40;
constexpr std::size_t kTcpLeast = 20;
constexpr unsigned kProtocolTcp = 6;
constexpr std::size_t kFlagsOffset = 13;  // in the TCP header
constexpr std::size_t kChecksumOffset = 16;
constexpr unsigned kAcknowledgementOnly = 0x10;
constexpr unsigned kAnyOtherFlag = 0x07;  // FIN, SYN, RST

unsigned word_at(const Frame& frame, std::size_t at) {
    return static_cast<unsigned>(frame[at]) << 8 | frame[at + 1];
}

std::uint64_t hash_of(const Frame& frame, std::size_t at, std::size_t bytes, std::uint64_t hash) {
    for (std::size_t i = at; i < at + bytes; ++i) {  // FNV-1a
        hash = (hash ^ frame[i]) * 0x100000001b3;
    }
    return hash;
}

// Address and port of one end; `source`: of the sender.
std::uint64_t end_of(const Frame& frame, const Layout& layout, bool source) {
    const bool v4 = frame[layout.ip_begin] >> 4 == 4;
    const std::size_t bytes = v4 ? 4 : 16;
    const std::size_t first = layout.ip_begin + (v4 ? 12 : 8);
    const std::uint64_t hash =
        hash_of(frame, first + (source ? 0 : bytes), bytes, 0xcbf29ce484222325);
    return hash_of(frame, layout.tcp_begin + (source ? 0 : 2), 2, hash);
}

std::uint32_t folded(std::uint32_t sum) {
    while (sum >> 16 != 0) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return sum;
}

// IPv4 header -> layout without TCP; returns the protocol, or 0 where it is a fragment or wrong.
unsigned read_ipv4(const Frame& frame, Layout& layout) {
    const std::size_t header = std::size_t{4} * (frame[kEthernet] & 0x0f);
    const std::size_t total = word_at(frame, kEthernet + 2);
    if (header < kIpv4Least || total < header || kEthernet + total > frame.size()) {
        return 0;
    }
    layout.ip = true;
    layout.ip_begin = kEthernet;
    layout.tcp_begin = kEthernet + header;
    layout.end = kEthernet + total;
    const bool fragment = (word_at(frame, kEthernet + 6) & 0x3fff) != 0;
    return fragment ? 0 : frame[kEthernet + 9];
}

unsigned read_ipv6(const Frame& frame, Layout& layout) {
    if (frame.size() < kEthernet + kIpv6Header) {
        return 0;
    }
    const std::size_t total = kIpv6Header + word_at(frame, kEthernet + 4);
    if (kEthernet + total > frame.size()) {
        return 0;
    }
    layout.ip = true;
    layout.ip_begin = kEthernet;
    layout.tcp_begin = kEthernet + kIpv6Header;
    layout.end = kEthernet + total;
    return frame[kEthernet + 6];  // an extension header is no TCP
}

// After the byte at `place` was changed: RFC 1624, equation 3, for the 16-bit word it is a half of.
void mend_checksum(Frame& frame, const Layout& layout, std::size_t place, unsigned char before) {
    const bool high = (place - layout.tcp_begin) % 2 == 0;
    const unsigned old_word = static_cast<unsigned>(before) << (high ? 8 : 0);
    const unsigned new_word = static_cast<unsigned>(frame[place]) << (high ? 8 : 0);
    const std::size_t at = layout.tcp_begin + kChecksumOffset;
    const std::uint32_t sum =
        folded((~word_at(frame, at) & 0xffff) + (~old_word & 0xffff) + new_word);
    frame[at] = static_cast<unsigned char>((~sum >> 8) & 0xff);
    frame[at + 1] = static_cast<unsigned char>(~sum & 0xff);
}

}  // namespace

Layout layout_of(const Frame& frame) {
    Layout layout;
    if (frame.size() < kEthernet + kIpv4Least) {
        return layout;
    }
    const unsigned type = word_at(frame, 12);
    const unsigned version = frame[kEthernet] >> 4;
    unsigned protocol = 0;
    if (type == 0x0800 && version == 4) {
        protocol = read_ipv4(frame, layout);
    } else if (type == 0x86dd && version == 6) {
        protocol = read_ipv6(frame, layout);
    }
    if (protocol != kProtocolTcp || layout.tcp_begin + kTcpLeast > layout.end) {
        return layout;
    }
    layout.payload_begin = layout.tcp_begin + std::size_t{4} * (frame[layout.tcp_begin + 12] >> 4);
    if (layout.payload_begin < layout.tcp_begin + kTcpLeast || layout.payload_begin > layout.end) {
        return layout;
    }
    layout.tcp = true;
    layout.connection = end_of(frame, layout, true) + end_of(frame, layout, false);
    const unsigned flags = frame[layout.tcp_begin + kFlagsOffset];
    layout.pure_acknowledgement = layout.payload_bytes() == 0 &&
                                  (flags & kAcknowledgementOnly) != 0 &&
                                  (flags & kAnyOtherFlag) == 0;
    return layout;
}

void flip_a_bit(Frame& frame, const Layout& layout, std::uint64_t random) {
    const std::size_t bit = random % (8 * layout.ip_bytes());
    frame[layout.ip_begin + bit / 8] ^= static_cast<unsigned char>(1U << bit % 8);
}

bool flip_a_bit_silently(Frame& frame, const Layout& layout, std::uint64_t random) {
    if (!layout.tcp || layout.payload_bytes() == 0) {
        return false;
    }
    const std::size_t bit = random % (8 * layout.payload_bytes());
    const std::size_t place = layout.payload_begin + bit / 8;
    const unsigned char before = frame[place];
    frame[place] ^= static_cast<unsigned char>(1U << bit % 8);
    mend_checksum(frame, layout, place, before);
    return true;
}

void make_reset(Frame& frame, const Layout& layout) {
    const std::size_t place = layout.tcp_begin + kFlagsOffset;
    const unsigned char before = frame[place];
    frame[place] |= 0x04;
    mend_checksum(frame, layout, place, before);
}

bool tcp_checksum_is_right(const Frame& frame, const Layout& layout) {
    std::uint32_t sum = kProtocolTcp + static_cast<std::uint32_t>(layout.end - layout.tcp_begin);
    for (std::size_t at = layout.ip_begin + 12; at < layout.ip_begin + 20; at += 2) {
        sum += word_at(frame, at);
    }
    for (std::size_t at = layout.tcp_begin; at < layout.end; at += 2) {
        sum += at + 1 < layout.end ? word_at(frame, at) : static_cast<unsigned>(frame[at]) << 8;
    }
    return folded(sum) == 0xffff;
}

}  // namespace relay
