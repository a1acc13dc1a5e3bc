// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/peer_flow.h"

#include <endian.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "tools/doctor/peer_socket.h"

namespace deft::tools::doctor {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kBlock = 1 << 18;
constexpr std::size_t kPings = 32;
constexpr auto kSlack = 10s;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What the side that answers says at the end of a flow, in network order.
struct Record {
    std::uint64_t bytes = 0;         // that it has received
    std::uint64_t microseconds = 0;  // from the first of them to the end
    std::uint64_t segments = 0;      // that it has sent
    std::uint64_t again = 0;         // of them, more than once
    std::uint64_t path_mtu = 0;
};
using Encoded = std::array<std::uint64_t, 5>;

Encoded encode(const Record& record) {
    return {htobe64(record.bytes), htobe64(record.microseconds), htobe64(record.segments),
            htobe64(record.again), htobe64(record.path_mtu)};
}

Record decode(const Encoded& words) {
    return {be64toh(words[0]), be64toh(words[1]), be64toh(words[2]), be64toh(words[3]),
            be64toh(words[4])};
}

// What the kernel says of a connection that has sent.
Record sender_record(int fd) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
        return {};
    }
    return {0, 0, info.tcpi_segs_out, info.tcpi_total_retrans, info.tcpi_pmtu};
}

void add_sender(const Record& record, Flow& flow) {
    flow.sent_again = record.segments == 0
                          ? 0
                          : std::min(1.0, static_cast<double>(record.again) /
                                              static_cast<double>(record.segments));
    flow.path_mtu = static_cast<int>(std::min<std::uint64_t>(record.path_mtu, 1 << 20));
}

bool fill(int fd, std::chrono::milliseconds time) {
    const std::string block(kBlock, 'd');
    const auto end = Clock::now() + time;
    while (Clock::now() < end) {
        if (!send_all(fd, block.data(), block.size(), after(kSlack))) {
            return false;
        }
    }
    return true;
}

// Reads until the end. `tail`: the last bytes of all, at most as many as a record has.
bool take_all(int fd, Deadline deadline, Record& taken, std::string& tail) {
    std::string block(kBlock, '\0');
    Clock::time_point first{};
    for (;;) {
        if (Clock::now() >= deadline) {
            return false;  // somebody who never stops sending
        }
        const ssize_t got = ::recv(fd, block.data(), block.size(), MSG_DONTWAIT);
        if (got == 0) {
            break;
        }
        if (got < 0) {
            pollfd ready{fd, POLLIN, 0};
            const bool may_wait = errno == EAGAIN || errno == EINTR;
            if (!may_wait) {
                return false;
            }
            (void)::poll(&ready, 1, 1000);
            continue;
        }
        if (taken.bytes == 0) {
            first = Clock::now();
        }
        const auto count = static_cast<std::size_t>(got);
        taken.bytes += count;
        const std::size_t last = std::min(count, sizeof(Encoded));
        tail.append(block, count - last, last);
        tail.erase(0, tail.size() - std::min(tail.size(), sizeof(Encoded)));
    }
    taken.microseconds =
        taken.bytes == 0 ? 0 : static_cast<std::uint64_t>(seconds_since(first) * 1e6);
    return true;
}

double rate(std::uint64_t bytes, std::uint64_t microseconds) {
    return microseconds == 0 ? 0
                             : static_cast<double>(bytes) * 1e6 / static_cast<double>(microseconds);
}

}  // namespace

bool measure_round_trips(int fd, std::vector<double>& seconds) {
    std::array<char, kSmall> bytes{};
    if (!send_all(fd, &kAskPings, 1, after(3s))) {
        return false;
    }
    for (std::size_t i = 0; i <= kPings; ++i) {
        const auto begin = Clock::now();
        if (!send_all(fd, bytes.data(), bytes.size(), after(3s)) ||
            !receive_all(fd, bytes.data(), bytes.size(), after(3s))) {
            return false;
        }
        if (i > 0) {  // the first one has started a process
            seconds.push_back(seconds_since(begin));
        }
    }
    std::sort(seconds.begin(), seconds.end());
    return true;
}

bool measure_sending(int fd, std::chrono::milliseconds time, Flow& flow) {
    Encoded words{};
    if (!send_all(fd, &kAskDrain, 1, after(3s)) || !fill(fd, time) ||
        ::shutdown(fd, SHUT_WR) != 0 ||
        !receive_all(fd, words.data(), sizeof words, after(time + kSlack))) {
        return false;
    }
    const Record theirs = decode(words);
    flow.bytes_per_s = rate(theirs.bytes, theirs.microseconds);
    add_sender(sender_record(fd), flow);
    return true;
}

bool measure_receiving(int fd, std::chrono::milliseconds time, Flow& flow) {
    const std::uint32_t wanted = htobe32(static_cast<std::uint32_t>(time.count()));
    Record taken;
    std::string tail;
    if (!send_all(fd, &kAskSource, 1, after(3s)) ||
        !send_all(fd, &wanted, sizeof wanted, after(3s)) ||
        !take_all(fd, after(time + kSlack), taken, tail) || tail.size() != sizeof(Encoded)) {
        return false;
    }
    Encoded words{};
    std::memcpy(words.data(), tail.data(), sizeof words);
    flow.bytes_per_s = rate(taken.bytes, taken.microseconds);
    add_sender(decode(words), flow);
    return true;
}

void answer_pings(int fd) {
    std::array<char, kSmall> bytes{};
    const Deadline end = after(kLongestFlow);
    while (receive_all(fd, bytes.data(), bytes.size(), end) &&
           send_all(fd, bytes.data(), bytes.size(), end)) {
    }
}

void answer_drain(int fd) {
    Record taken;
    std::string tail;
    if (take_all(fd, after(kLongestFlow + kSlack), taken, tail)) {
        const Encoded words = encode(taken);
        (void)send_all(fd, words.data(), sizeof words, after(kSlack));
    }
}

void answer_source(int fd) {
    std::uint32_t wanted = 0;
    if (!receive_all(fd, &wanted, sizeof wanted, after(kSlack))) {
        return;
    }
    const auto time = std::min(std::chrono::milliseconds(be32toh(wanted)), kLongestFlow);
    if (fill(fd, time)) {
        const Encoded words = encode(sender_record(fd));
        (void)send_all(fd, words.data(), sizeof words, after(kSlack));
    }
}

}  // namespace deft::tools::doctor
