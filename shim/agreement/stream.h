// SPDX-License-Identifier: Apache-2.0
// A non-blocking connection that carries frames. Used by the agreement thread only.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "shim/agreement/wire.h"

namespace deft::agreement {

// No delay, and keep-alives: a host that has died is found by the kernel, while a process that is
// only stopped stays a member.
void tune(int fd);

class Stream {
public:
    Stream() = default;
    explicit Stream(UniqueFd fd) : fd_(std::move(fd)) {}

    // The connection is good, as far as is known.
    bool open() const { return fd_ && !over_; }
    // Also of one that is over: whoever waits for it with epoll has to say so before close(). In a
    // job that has forked the child has the socket too, and its closing here ends no waiting.
    int fd() const { return fd_.get(); }
    void close();

    // Queues a frame and sends what the kernel takes. False, and over, if the connection is broken
    // or the peer has let too much pile up.
    bool send(const wire::Frame& frame);
    bool flush();
    bool flushed() const { return out_.empty(); }
    std::size_t waiting() const { return waiting_; }

    // Reads what has come, up to a limit, so that one peer cannot keep the thread. False, and
    // over, at the end of the connection or an error.
    bool fill();

    enum class Next { Frame, None, Bad };
    // The next complete frame; `payload` is good until the next call of fill() or next(). Bad: not
    // our protocol, longer than `limit` or its type allow, or not what was sent.
    Next next(wire::Header& header, std::span<const std::byte>& payload,
              std::size_t limit = static_cast<std::size_t>(-1));
    // All bytes of the frame that next() has given, as good as its payload.
    std::span<const std::byte> whole() const { return whole_; }
    // The version byte of what was refused as Bad differs from ours.
    bool other_version() const { return other_version_; }
    // What was refused as Bad was of our protocol, but its checksum was wrong.
    bool damaged() const { return damaged_; }
    // What was refused as Bad was made with another shared secret, or with none, or without a need.
    bool other_secret() const { return other_secret_; }
    // The network has ended the connection, or a peer that does not read: neither end's doing.
    bool broken() const { return broken_; }
    // The peer has closed it.
    bool closed_by_peer() const { return closed_by_peer_; }
    // What has come and was not taken as a frame yet.
    bool anything_in() const { return in_.size() != taken_; }
    // The peer has closed and said nothing more before it did. Takes nothing.
    bool gone() const;

private:
    UniqueFd fd_;
    bool over_ = false;
    std::vector<std::byte> in_;
    std::size_t taken_ = 0;  // of in_
    std::span<const std::byte> whole_;
    std::deque<wire::Frame> out_;
    std::size_t sent_ = 0;     // of the first of them
    std::size_t waiting_ = 0;  // bytes of all of them that are not sent
    bool other_version_ = false;
    bool damaged_ = false;
    bool other_secret_ = false;
    bool broken_ = false;
    bool closed_by_peer_ = false;

    bool fail();
    void drop_sent(std::size_t bytes);
};

}  // namespace deft::agreement
