// SPDX-License-Identifier: Apache-2.0
// Which congestion control a path's sending socket has (DEFT_TCP_CONGESTION).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace deft::net {

// "system": the host's default. A name: that one on every path. "auto": the host's default, but on
// near paths CUBIC in the place of BBR, where the host lets us. BBR is made for long paths: it
// spaces packets by a timer at the rate it believes in, and a sender that waits for the receiver's
// word leaves it little to measure. On one unshaped link that cost up to half of the rate.
class Congestion {
public:
    // `near`: round trip in microseconds up to which a path is near.
    explicit Congestion(std::string setting, std::uint32_t near = 1000)
        : setting_(std::move(setting)), near_(near) {}

    // Before connect(): a connection that has once begun with BBR stays paced (Linux).
    void begin(int fd);
    // Once connected: what `auto` replaced comes back where the first round trip took long.
    void connected(int fd);

private:
    static constexpr std::size_t kName = 16;  // TCP_CA_NAME_MAX

    std::string setting_;
    std::uint32_t near_;
    std::array<char, kName> replaced_{};  // empty: nothing
};

}  // namespace deft::net
