// SPDX-License-Identifier: Apache-2.0
// A non-blocking connection that carries frames. Used by the agreement thread only.
#pragma once

#include <poll.h>
#include <cstddef>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "shim/agreement/wire.h"

namespace deft::agreement {

// No delay, and keep-alives: a host that has died is found by the kernel, while a process that is
// only stopped stays a member.
void tune(int fd);

// The descriptors of one round of the thread.
using PollSet = std::vector<pollfd>;

class Stream {
public:
    Stream() = default;
    explicit Stream(UniqueFd fd) : fd_(std::move(fd)) {}

    bool open() const { return static_cast<bool>(fd_); }
    void close();

    // Takes its place among the descriptors to wait for; read by ready() after the wait.
    void gather(PollSet& set);
    short ready(const PollSet& set) const;
    std::size_t place() const { return place_; }

    // Queues a frame and sends what the kernel takes. False, and closed, if the connection is
    // broken or the peer has let too much pile up.
    bool send(wire::Type type, std::span<const std::byte> payload);
    bool flush();
    bool flushed() const { return sent_ == out_.size(); }

    // Reads what has come, up to a limit, so that one peer cannot keep the thread. False, and
    // closed, at the end of the connection or an error.
    bool fill();

    enum class Next { Frame, None, Bad };
    // The next complete frame; `payload` is good until the next call of fill() or next(). Bad: not
    // our protocol, longer than `limit` or its type allow, or not what was sent.
    Next next(wire::Header& header, std::span<const std::byte>& payload,
              std::size_t limit = static_cast<std::size_t>(-1));
    // The version byte of what was refused as Bad differs from ours.
    bool other_version() const { return other_version_; }
    // What was refused as Bad was of our protocol, but its checksum was wrong.
    bool damaged() const { return damaged_; }
    // What has come and was not taken as a frame yet.
    bool anything_in() const { return in_.size() != taken_; }
    // The peer has closed and said nothing more before it did. Takes nothing.
    bool gone() const;

private:
    UniqueFd fd_;
    std::size_t place_ = static_cast<std::size_t>(-1);
    std::vector<std::byte> in_;
    std::size_t taken_ = 0;  // of in_
    std::vector<std::byte> out_;
    std::size_t sent_ = 0;  // of out_
    bool other_version_ = false;
    bool damaged_ = false;
};

}  // namespace deft::agreement
