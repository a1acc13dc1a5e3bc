// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/poller.h"

namespace deft::agreement {

bool Poller::open() {
    fd_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    return static_cast<bool>(fd_);
}

bool Poller::add(int fd, std::uint32_t events, Watcher* watcher) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = watcher;
    return ::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Poller::change(int fd, std::uint32_t events, Watcher* watcher) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = watcher;
    (void)::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::forget(int fd, Watcher* watcher) {
    if (fd >= 0) {
        (void)::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
    for (int i = 0; i < count_; ++i) {
        epoll_event& event = events_[static_cast<std::size_t>(i)];
        if (event.data.ptr == watcher) {
            event.data.ptr = nullptr;
        }
    }
}

void Poller::wait(int milliseconds) {
    count_ =
        ::epoll_wait(fd_.get(), events_.data(), static_cast<int>(events_.size()), milliseconds);
}

void Poller::tell() {
    const Clock::time_point now = Clock::now();
    for (int i = 0; i < count_; ++i) {
        const epoll_event& event = events_[static_cast<std::size_t>(i)];
        if (event.data.ptr != nullptr) {
            static_cast<Watcher*>(event.data.ptr)->ready(event.events, now);
        }
    }
    count_ = 0;
}

}  // namespace deft::agreement
