// SPDX-License-Identifier: Apache-2.0
// The TCP connection by which a path over ports has begun, on which nothing more comes: its end
// tells of the end of the peer's process.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/unique_fd.h"

namespace deft::net {

class LifeLine {
public:
    enum class Word { Nothing, Ended, Reset };

    void hold(UniqueFd socket) { socket_ = std::move(socket); }
    // Where a network takes the connection away, the path goes on without.
    bool there() const { return static_cast<bool>(socket_); }
    Word look() {
        char nothing = 0;
        const ssize_t got = ::recv(socket_.get(), &nothing, 1, MSG_DONTWAIT | MSG_PEEK);
        if (got == 0) {
            return Word::Ended;
        }
        if (got < 0 && errno == ECONNRESET) {
            return Word::Reset;
        }
        if (got < 0 && errno != EAGAIN && errno != EINTR) {
            socket_.reset();  // of another network, which says nothing about the path's
        }
        return Word::Nothing;
    }

private:
    UniqueFd socket_;
};

}  // namespace deft::net
