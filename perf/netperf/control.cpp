// SPDX-License-Identifier: Apache-2.0
#include "perf/netperf/control.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace netperf {
namespace {

constexpr int kPatienceMs = 7200 * 1000;

void receive_all(int fd, char* to, size_t bytes) {
    while (bytes > 0) {
        pollfd wait{fd, POLLIN, 0};
        if (poll(&wait, 1, kPatienceMs) == 0) {
            throw PeerGone("the other process does not answer");
        }
        const ssize_t received = recv(fd, to, bytes, 0);
        if (received < 0 && errno == EINTR) {
            continue;
        }
        if (received <= 0) {
            throw PeerGone("the other process ended");
        }
        to += received;
        bytes -= received;
    }
}

}  // namespace

void Control::send(const nlohmann::json& value) {
    const std::string text = value.dump();
    const uint64_t length = text.size();
    std::string message(reinterpret_cast<const char*>(&length), sizeof length);
    message += text;
    for (size_t sent = 0; sent < message.size();) {
        // Both ends may send more than the socket holds: what the other one says is taken
        // meanwhile.
        pollfd wait{fd_.get(), POLLIN | POLLOUT, 0};
        poll(&wait, 1, kPatienceMs);
        if ((wait.revents & POLLIN) != 0) {
            char block[65536];
            const ssize_t bytes = recv(fd_.get(), block, sizeof block, MSG_DONTWAIT);
            if (bytes == 0) {
                throw PeerGone("the other process ended");
            }
            early_.append(block, bytes > 0 ? static_cast<size_t>(bytes) : 0);
        }
        const ssize_t bytes = ::send(fd_.get(), message.data() + sent, message.size() - sent,
                                     MSG_NOSIGNAL | MSG_DONTWAIT);
        if (bytes < 0 && errno != EINTR && errno != EAGAIN) {
            throw PeerGone("the other process ended");
        }
        sent += bytes > 0 ? static_cast<size_t>(bytes) : 0;
    }
}

void Control::take(char* to, size_t bytes) {
    const size_t early = std::min(bytes, early_.size());
    std::copy_n(early_.begin(), early, to);
    early_.erase(0, early);
    receive_all(fd_.get(), to + early, bytes - early);
}

nlohmann::json Control::receive() {
    uint64_t length = 0;
    take(reinterpret_cast<char*>(&length), sizeof length);
    std::vector<char> text(length);
    take(text.data(), text.size());
    return nlohmann::json::parse(text.begin(), text.end());
}

}  // namespace netperf
