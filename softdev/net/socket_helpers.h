// SPDX-License-Identifier: Apache-2.0
// Data sockets with helper threads (NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD): large messages
// are cut and dealt round-robin over the sockets, in the same fixed order on both sides.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace softdev::net {

enum class Direction { Send, Receive };

class SocketHelpers {
public:
    // Owns the sockets (non-blocking, connected). Throws std::system_error if no thread can start.
    SocketHelpers(Direction direction, std::vector<deft::UniqueFd> sockets, int threads);
    ~SocketHelpers();  // drops what is in flight
    SocketHelpers(const SocketHelpers&) = delete;
    SocketHelpers& operator=(const SocketHelpers&) = delete;

    // Cuts the message; *pending is raised by the number of pieces and falls to 0 as they finish.
    // One caller at a time.
    void submit(char* data, size_t bytes, std::atomic<int>* pending);

    // 0, an errno, or kClosedByPeer once a socket failed.
    int error() const { return error_.load(std::memory_order_acquire); }
    static constexpr int kClosedByPeer = -1;

private:
    struct Piece {
        char* data;
        size_t bytes;
        std::atomic<int>* pending;
    };
    struct Thread;

    void run(Thread& thread);
    bool advance(int fd, std::deque<Piece>& pieces);

    const Direction direction_;
    std::vector<deft::UniqueFd> sockets_;
    std::vector<std::unique_ptr<Thread>> threads_;
    size_t next_socket_ = 0;
    std::atomic<int> error_{0};
};

}  // namespace softdev::net
