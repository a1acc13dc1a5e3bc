// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/socket_helpers.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace softdev::net {
namespace {

constexpr size_t kSmallestPiece = 64 << 10;  // NCCL_SOCKET_MIN_TASKSIZE's default

}  // namespace

struct SocketHelpers::Thread {
    struct Lane {
        int fd;
        std::deque<Piece> pieces;
    };
    std::mutex mutex;
    std::vector<std::pair<size_t, Piece>> incoming;  // lane index, piece; guarded by mutex
    bool stop = false;                               // guarded by mutex
    deft::UniqueFd wake{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::vector<Lane> lanes;  // the thread's own
    std::thread thread;

    void notify() {
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(wake.get(), &one, sizeof one);
    }
};

SocketHelpers::SocketHelpers(Direction direction, std::vector<deft::UniqueFd> sockets, int threads)
    : direction_(direction), sockets_(std::move(sockets)) {
    for (int i = 0; i < threads; ++i) {
        threads_.push_back(std::make_unique<Thread>());
    }
    for (size_t i = 0; i < sockets_.size(); ++i) {
        threads_[i % threads_.size()]->lanes.push_back({sockets_[i].get(), {}});
    }
    for (auto& thread : threads_) {
        thread->thread = std::thread([this, &thread = *thread] { run(thread); });
    }
}

SocketHelpers::~SocketHelpers() {
    for (auto& thread : threads_) {
        {
            const std::lock_guard<std::mutex> lock(thread->mutex);
            thread->stop = true;
        }
        thread->notify();
    }
    for (auto& thread : threads_) {
        if (thread->thread.joinable()) {
            thread->thread.join();
        }
    }
}

void SocketHelpers::submit(char* data, size_t bytes, std::atomic<int>* pending) {
    const size_t count = sockets_.size();
    const size_t piece_bytes = std::max(kSmallestPiece, (bytes + count - 1) / count);
    pending->store(static_cast<int>((bytes + piece_bytes - 1) / piece_bytes),
                   std::memory_order_relaxed);
    for (size_t offset = 0; offset < bytes; offset += piece_bytes) {
        const size_t socket = next_socket_;
        next_socket_ = (next_socket_ + 1) % count;
        Thread& thread = *threads_[socket % threads_.size()];
        {
            const std::lock_guard<std::mutex> lock(thread.mutex);
            thread.incoming.emplace_back(
                socket / threads_.size(),
                Piece{data + offset, std::min(piece_bytes, bytes - offset), pending});
        }
        thread.notify();
    }
}

// Moves what the socket takes; true if anything moved.
bool SocketHelpers::advance(int fd, std::deque<Piece>& pieces) {
    bool moved = false;
    while (!pieces.empty()) {
        Piece& piece = pieces.front();
        const ssize_t bytes = direction_ == Direction::Send
                                  ? send(fd, piece.data, piece.bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                                  : recv(fd, piece.data, piece.bytes, MSG_DONTWAIT);
        if (bytes < 0 && errno == EINTR) {
            continue;
        }
        if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return moved;
        }
        if (bytes <= 0) {
            int expected = 0;
            error_.compare_exchange_strong(expected, bytes == 0 ? kClosedByPeer : errno);
            pieces.clear();
            return moved;
        }
        moved = true;
        piece.data += bytes;
        piece.bytes -= bytes;
        if (piece.bytes == 0) {
            piece.pending->fetch_sub(1, std::memory_order_release);
            pieces.pop_front();
        }
    }
    return moved;
}

void SocketHelpers::run(Thread& thread) {
    std::vector<pollfd> waits;
    for (;;) {
        {
            const std::lock_guard<std::mutex> lock(thread.mutex);
            if (thread.stop) {
                return;
            }
            for (auto& [lane, piece] : thread.incoming) {
                thread.lanes[lane].pieces.push_back(piece);
            }
            thread.incoming.clear();
        }
        bool moved = false;
        waits.assign(1, pollfd{thread.wake.get(), POLLIN, 0});
        for (Thread::Lane& lane : thread.lanes) {
            moved |= advance(lane.fd, lane.pieces);
            if (!lane.pieces.empty()) {
                const short events = direction_ == Direction::Send ? POLLOUT : POLLIN;
                waits.push_back({lane.fd, events, 0});
            }
        }
        if (!moved) {
            poll(waits.data(), waits.size(), -1);
        }
        uint64_t count;
        [[maybe_unused]] const ssize_t bytes = read(thread.wake.get(), &count, sizeof count);
    }
}

}  // namespace softdev::net
