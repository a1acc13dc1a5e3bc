// SPDX-License-Identifier: Apache-2.0
#include "perf/netperf/control.h"

#include <poll.h>
#include <sys/socket.h>

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
        const ssize_t bytes =
            ::send(fd_.get(), message.data() + sent, message.size() - sent, MSG_NOSIGNAL);
        if (bytes < 0 && errno != EINTR) {
            throw PeerGone("the other process ended");
        }
        sent += bytes > 0 ? bytes : 0;
    }
}

nlohmann::json Control::receive() {
    uint64_t length = 0;
    receive_all(fd_.get(), reinterpret_cast<char*>(&length), sizeof length);
    std::vector<char> text(length);
    receive_all(fd_.get(), text.data(), text.size());
    return nlohmann::json::parse(text.begin(), text.end());
}

}  // namespace netperf
