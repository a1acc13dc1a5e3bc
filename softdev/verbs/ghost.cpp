// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/ghost.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

namespace softdev::verbs {
namespace {

constexpr auto kLongest = std::chrono::seconds(10);  // a packet does not live for ever

}  // namespace

void Ghost::haunt(Nic& nic, deft::UniqueFd socket, std::string bytes, Clock::duration wait) {
    if (!socket) {
        return;
    }
    auto ghost = std::make_unique<Ghost>(nic, std::move(socket), std::move(bytes));
    Ghost* const made = ghost.get();
    nic.keep(std::move(ghost));
    nic.watch(*made, EPOLLIN);
    made->end_timer_ = nic.later(wait + kLongest, [made] {
        made->end_timer_ = 0;
        made->nic_.discard(*made);
    });
    if (wait.count() > 0) {
        made->start_timer_ = nic.later(wait, [made] {
            made->start_timer_ = 0;
            made->start();
        });
    } else {
        made->start();
    }
}

Ghost::Ghost(Nic& nic, deft::UniqueFd socket, std::string bytes)
    : nic_(nic), bytes_(std::move(bytes)) {
    fd = std::move(socket);
}

Ghost::~Ghost() {
    nic_.cancel(start_timer_);
    nic_.cancel(end_timer_);
}

void Ghost::start() {
    started_ = true;
    if (!send_rest()) {
        nic_.discard(*this);
    }
}

bool Ghost::send_rest() {
    while (sent_ < bytes_.size()) {
        const ssize_t now = ::send(fd.get(), bytes_.data() + sent_, bytes_.size() - sent_,
                                   MSG_DONTWAIT | MSG_NOSIGNAL);
        if (now < 0) {
            nic_.watch(*this, EPOLLIN | EPOLLOUT);
            return errno == EAGAIN || errno == EINTR;
        }
        sent_ += static_cast<std::size_t>(now);
    }
    nic_.watch(*this, EPOLLIN);
    ::shutdown(fd.get(), SHUT_WR);
    return true;
}

void Ghost::ready(unsigned events) {
    // Closing with unread bytes would take back what the kernel has yet to send.
    std::array<char, 65536> ignored;
    ssize_t got = 0;
    do {
        got = ::recv(fd.get(), ignored.data(), ignored.size(), MSG_DONTWAIT);
    } while (got > 0);
    const bool over = got == 0 || (errno != EAGAIN && errno != EINTR);
    if (over || ((events & EPOLLOUT) != 0 && started_ && !send_rest())) {
        nic_.discard(*this);
    }
}

}  // namespace softdev::verbs
