// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <array>
#include <cerrno>
#include <cstring>

namespace deft::agreement {
namespace {

constexpr std::size_t kReadSize = 64 * 1024;
constexpr std::size_t kReadsPerTurn = 4;
// What may wait for a peer that does not read: two proposals.
constexpr std::size_t kMaxWaiting = std::size_t{10} << 20;

}  // namespace

void tune(int fd) {
    const auto set = [fd](int level, int option, int value) {
        (void)::setsockopt(fd, level, option, &value, sizeof(value));
    };
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set(IPPROTO_TCP, TCP_KEEPCNT, 6);
}

void Stream::close() {
    fd_.reset();
    in_ = {};
    out_ = {};
    taken_ = 0;
    sent_ = 0;
    place_ = static_cast<std::size_t>(-1);
}

void Stream::gather(PollSet& set) {
    place_ = static_cast<std::size_t>(-1);
    if (fd_) {
        place_ = set.size();
        set.push_back({fd_.get(), static_cast<short>(POLLIN | (flushed() ? 0 : POLLOUT)), 0});
    }
}

short Stream::ready(const PollSet& set) const {
    return fd_ && place_ < set.size() && set[place_].fd == fd_.get() ? set[place_].revents : 0;
}

bool Stream::send(wire::Type type, std::span<const std::byte> payload) {
    if (!fd_) {
        return false;
    }
    if (out_.size() - sent_ + payload.size() > kMaxWaiting) {
        close();
        return false;
    }
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::encode({type, static_cast<std::uint32_t>(payload.size())}, header);
    out_.insert(out_.end(), header.begin(), header.end());
    out_.insert(out_.end(), payload.begin(), payload.end());
    std::array<std::byte, wire::kChecksumBytes> sum;
    const std::uint32_t value = wire::frame_checksum(header, payload);
    std::memcpy(sum.data(), &value, sum.size());
    out_.insert(out_.end(), sum.begin(), sum.end());
    return flush();
}

bool Stream::flush() {
    while (fd_ && sent_ < out_.size()) {
        const ssize_t sent = ::send(fd_.get(), out_.data() + sent_, out_.size() - sent_,
                                    MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            sent_ += static_cast<std::size_t>(sent);
        } else if (sent < 0 && errno == EAGAIN) {
            return true;
        } else if (sent < 0 && errno == EINTR) {
            continue;
        } else {
            close();
            return false;
        }
    }
    out_.clear();
    sent_ = 0;
    if (out_.capacity() > kReadSize) {
        out_.shrink_to_fit();
    }
    return static_cast<bool>(fd_);
}

bool Stream::fill() {
    if (taken_ != 0) {
        in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(taken_));
        taken_ = 0;
    }
    if (in_.empty() && in_.capacity() > kReadSize) {
        in_.shrink_to_fit();
    }
    std::array<std::byte, kReadSize> chunk;
    for (std::size_t i = 0; fd_ && i < kReadsPerTurn; ++i) {
        const ssize_t got = ::recv(fd_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return true;
        }
        if (got <= 0) {
            // What came before the end still counts.
            fd_.reset();
            return false;
        }
        in_.insert(in_.end(), chunk.begin(), chunk.begin() + got);
        if (static_cast<std::size_t>(got) < chunk.size()) {
            return true;
        }
    }
    return open();
}

bool Stream::gone() const {
    if (anything_in()) {
        return false;
    }
    std::byte next{};
    const ssize_t got = fd_ ? ::recv(fd_.get(), &next, sizeof(next), MSG_PEEK | MSG_DONTWAIT) : 0;
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

Stream::Next Stream::next(wire::Header& header, std::span<const std::byte>& payload,
                          std::size_t limit) {
    const std::span<const std::byte> rest(in_.data() + taken_, in_.size() - taken_);
    if (rest.size() < wire::kHeaderBytes) {
        return Next::None;
    }
    const auto head = rest.first<wire::kHeaderBytes>();
    const wire::Decoded decoded = wire::decode(head, header);
    other_version_ = decoded == wire::Decoded::WrongVersion;
    if (decoded != wire::Decoded::Ok || header.length > limit) {
        return Next::Bad;
    }
    const std::size_t size = wire::kHeaderBytes + header.length + wire::kChecksumBytes;
    if (rest.size() < size) {
        return Next::None;
    }
    payload = rest.subspan(wire::kHeaderBytes, header.length);
    std::uint32_t sum = 0;
    std::memcpy(&sum, rest.data() + size - sizeof(sum), sizeof(sum));
    damaged_ = sum != wire::frame_checksum(head, payload);
    if (damaged_) {
        return Next::Bad;
    }
    taken_ += size;
    return Next::Frame;
}

}  // namespace deft::agreement
