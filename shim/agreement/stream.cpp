// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <array>
#include <cerrno>

#include "shim/agreement/seal.h"

namespace deft::agreement {
namespace {

constexpr std::size_t kReadSize = 64 * 1024;
constexpr std::size_t kReadsPerTurn = 4;
constexpr std::size_t kFramesAtOnce = 16;
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
    // The same for a peer that has something of ours to acknowledge: keep-alives rest meanwhile,
    // and the kernel would go on for a quarter of an hour. One that is stopped acknowledges.
    constexpr int kUnheardMs = 40'000;
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnheardMs);
}

// What has come stays: the caller may hold a part of it.
void Stream::close() {
    fd_.reset();
    out_.clear();
    sent_ = waiting_ = 0;
}

// Always false.
bool Stream::fail() {
    broken_ = over_ = true;
    out_.clear();
    sent_ = waiting_ = 0;
    return false;
}

bool Stream::send(const wire::Frame& frame) {
    if (!open()) {
        return false;
    }
    if (waiting_ + frame->size() > kMaxWaiting) {
        return fail();
    }
    out_.push_back(frame);
    waiting_ += frame->size();
    return out_.size() > 1 || flush();  // else the kernel has no room
}

bool Stream::flush() {
    while (open() && !out_.empty()) {
        std::array<iovec, kFramesAtOnce> pieces;
        std::size_t count = 0;
        for (const wire::Frame& frame : out_) {
            const std::size_t skip = count == 0 ? sent_ : 0;
            // The kernel only reads.
            pieces[count++] = {const_cast<std::byte*>(frame->data()) + skip, frame->size() - skip};
            if (count == pieces.size()) {
                break;
            }
        }
        msghdr message{};
        message.msg_iov = pieces.data();
        message.msg_iovlen = count;
        const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            drop_sent(static_cast<std::size_t>(sent));
        } else if (sent < 0 && errno == EAGAIN) {
            return true;
        } else if (sent >= 0 || errno != EINTR) {
            return fail();
        }
    }
    return open();
}

void Stream::drop_sent(std::size_t bytes) {
    waiting_ -= bytes;
    sent_ += bytes;
    while (!out_.empty() && sent_ >= out_.front()->size()) {
        sent_ -= out_.front()->size();
        out_.pop_front();
    }
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
    for (std::size_t i = 0; open() && i < kReadsPerTurn; ++i) {
        const ssize_t got = ::recv(fd_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return true;
        }
        if (got <= 0) {
            // What came before the end still counts.
            (got == 0 ? closed_by_peer_ : broken_) = true;
            over_ = true;
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
    const Seal& seal = Seal::process();
    other_secret_ = header.secret != seal.secret();
    if (other_secret_) {
        return Next::Bad;
    }
    const std::size_t size = wire::kHeaderBytes + header.length + seal.bytes();
    if (rest.size() < size) {
        return Next::None;
    }
    whole_ = rest.first(size);
    payload = rest.subspan(wire::kHeaderBytes, header.length);
    damaged_ = !seal.good(head, payload, whole_.last(seal.bytes()));
    if (damaged_) {
        other_secret_ = seal.secret();
        return Next::Bad;
    }
    taken_ += size;
    return Next::Frame;
}

}  // namespace deft::agreement
