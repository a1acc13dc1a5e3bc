// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/link.h"

#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

namespace deft::agreement {

Link::Link(Links& links, UniqueFd fd, LinkOwner& owner, bool connecting)
    : links_(links), owner_(&owner), stream_(std::move(fd)), connecting_(connecting) {
    events_ = connecting ? EPOLLOUT : EPOLLIN;
    if (!links_.poller.add(stream_.fd(), events_, this)) {
        end(std::string("cannot be waited for: ") + std::strerror(errno));
    }
}

Link::~Link() {
    links_.poller.forget(stream_.fd(), this);
    std::erase(links_.ended, this);
}

void Link::send(const wire::Frame& frame) {
    if (over_) {
        return;
    }
    if (!stream_.send(frame)) {
        end("is gone");
        return;
    }
    wait_for_what_is_due();
}

void Link::hold(bool held) {
    held_ = held;
    wait_for_what_is_due();
}

void Link::wait_for_what_is_due() {
    if (over_ || connecting_ || !stream_.open()) {
        return;
    }
    const std::uint32_t wanted =
        (held_ ? 0U : std::uint32_t{EPOLLIN}) | (stream_.flushed() ? 0U : std::uint32_t{EPOLLOUT});
    if (wanted != events_) {
        events_ = wanted;
        links_.poller.change(stream_.fd(), events_, this);
    }
}

void Link::end(const std::string& how) {
    if (over_) {
        return;
    }
    over_ = true;
    how_ = how;
    links_.poller.forget(stream_.fd(), this);
    stream_.close();
    links_.ended.push_back(this);
}

bool Link::finish_connecting() {
    int error = 0;
    socklen_t length = sizeof(error);
    (void)::getsockopt(stream_.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
        end(std::string("connect: ") + std::strerror(error));
        return false;
    }
    connecting_ = false;
    wait_for_what_is_due();
    owner_->connected(*this);
    return true;
}

void Link::ready(std::uint32_t events, Clock::time_point /*now*/) {
    if (over_) {
        return;
    }
    if (connecting_) {
        (void)finish_connecting();
        return;
    }
    if ((events & EPOLLOUT) != 0 && !stream_.flush()) {
        end("is gone");
        return;
    }
    wait_for_what_is_due();
    if (held_ && (events & (EPOLLHUP | EPOLLERR)) != 0) {
        end("is gone");
    } else if (!held_) {
        read();
    }
}

void Link::read() {
    const bool alive = stream_.fill();
    wire::Header header;
    std::span<const std::byte> payload;
    while (!over_ && !held_) {
        const std::size_t most = limit_ == 0 ? static_cast<std::size_t>(-1) : limit_;
        const Stream::Next next = stream_.next(header, payload, most);
        if (next == Stream::Next::None) {
            break;
        }
        if (next == Stream::Next::Bad) {
            end(stream_.other_version()  ? "runs another release of deft"
                : stream_.other_secret() ? "has another DEFT_SECRET_FILE"
                : stream_.damaged()      ? "sent a damaged frame"
                                         : "sent nonsense");
        } else if (!owner_->take(*this, header, payload)) {
            end("sent nonsense");
        }
    }
    if (!alive) {
        end("is gone");
    }
}

void Link::tell_ends(Links& links) {
    while (!links.ended.empty()) {
        Link* const link = links.ended.back();
        links.ended.pop_back();
        link->owner_->ended(*link, std::string(link->how_));
    }
}

}  // namespace deft::agreement
