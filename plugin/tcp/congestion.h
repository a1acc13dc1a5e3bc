// SPDX-License-Identifier: Apache-2.0
// Which congestion control a path's sending socket has (DEFT_TCP_CONGESTION).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace deft::net {

// Says whether a path loses packets, from its socket's counters. One packet that was sent again is
// no lossy path: the kernel repeats one now and then because a busy host answered late. Pure.
class LossRate {
public:
    // Segments since the connection began, as tcp_info counts them: both wrap.
    struct Counts {
        std::uint32_t sent = 0;
        std::uint32_t lost = 0;
    };

    // True from the second window on end that lost a segment of every thousand or more. A window
    // ends with the first call that finds a thousand segments in it, or twenty lost ones: a path
    // that loses a tenth of them carries a thousand only in minutes.
    bool lossy(Counts now);

private:
    Counts begin_;
    bool last_was_lossy_ = false;
};

// Gives a connected socket its host's own congestion control back once its path proves lossy.
class LossWatch {
public:
    LossWatch() = default;

    // To be called now and then while the connection lives; costs a system call while there is
    // something to give back. `link`: its later paths keep the host's own from the start.
    void look(int fd);
    bool over() const { return replaced_[0] == '\0'; }

private:
    friend class Congestion;
    static constexpr std::size_t kName = 16;  // TCP_CA_NAME_MAX

    void give_back(int fd);

    std::array<char, kName> replaced_{};  // empty: nothing
    int link_ = 0;
    LossRate rate_;
};

// "system": the host's default. A name: that one on every path. "auto": the host's default, but on
// near paths CUBIC in the place of BBR, where the host lets us and the path is not lossy. BBR is
// made for long paths and for loss: it spaces packets by a timer at the rate it believes in, and a
// sender that waits for the receiver's word leaves it little to measure. On one unshaped link that
// cost up to half of the rate; where 1 % of the packets is lost, CUBIC costs a third.
class Congestion {
public:
    // `link`: the interface's index, by which a lossy one is remembered; 0: it is not. `near`:
    // round trip in microseconds up to which a path is near.
    explicit Congestion(std::string setting, int link = 0, std::uint32_t near = 1000)
        : setting_(std::move(setting)), link_(link), near_(near) {}

    // Before connect(): a connection that has once begun with BBR stays paced (Linux).
    void begin(int fd);
    // Once connected: what `auto` replaced comes back where the first round trip took long; else
    // the watch says when it has to.
    LossWatch connected(int fd);

private:
    std::string setting_;
    int link_;
    std::uint32_t near_;
    LossWatch watch_;
};

}  // namespace deft::net
