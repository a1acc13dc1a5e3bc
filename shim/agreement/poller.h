// SPDX-License-Identifier: Apache-2.0
// The agreement thread's wait for its descriptors (epoll).
#pragma once

#include <sys/epoll.h>
#include <array>
#include <cstdint>

#include "base/unique_fd.h"
#include "shim/agreement/council.h"

namespace deft::agreement {

// Whose descriptor something has happened to.
class Watcher {
public:
    // events: EPOLLIN and so on.
    virtual void ready(std::uint32_t events, Clock::time_point now) = 0;

protected:
    ~Watcher() = default;
};

// Used by the agreement thread only, once it is open.
class Poller {
public:
    // False, and errno, if the kernel gives none.
    bool open();

    // The watcher has to forget() itself before it goes.
    bool add(int fd, std::uint32_t events, Watcher* watcher);
    void change(int fd, std::uint32_t events, Watcher* watcher);
    // Nothing more is told to it, not even what has happened already. Before `fd` is closed: a
    // child of a fork may have it too, and then closing it here ends no waiting.
    void forget(int fd, Watcher* watcher);

    // Waits for `milliseconds` (-1: as long as it takes).
    void wait(int milliseconds);
    // Tells the watchers of what has happened until then.
    void tell();

private:
    UniqueFd fd_;
    std::array<epoll_event, 256> events_{};
    int count_ = 0;
};

}  // namespace deft::agreement
