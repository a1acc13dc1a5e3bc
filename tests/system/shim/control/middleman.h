// SPDX-License-Identifier: Apache-2.0
// A network between a rank and its leader that is cut for good when the rank has said yes to a plan
// and has not heard the decision. Nobody is told: packets vanish.
#pragma once

#include <arpa/inet.h>
#include <nccl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "tests/system/shim/control/plan_endings.h"

namespace deft::test {

// docs/agreement.md describes the trailer and the frames.
class Middleman {
public:
    // Stands between the leader that the id names, at its first address, and whoever gets the id.
    static void enter(ncclUniqueId& id) {
        (new Middleman(reinterpret_cast<unsigned char*>(id.internal) + 64))->begin();
    }

private:
    static constexpr std::size_t kHeader = 20;
    static constexpr std::size_t kSeal = 4;
    static constexpr unsigned char kPrepare = 6;
    static constexpr unsigned char kAnswer = 7;
    static constexpr unsigned char kArm = 2;

    explicit Middleman(unsigned char* trailer) {
        check(trailer[24] != 4, "the leader's first address");
        leader_.sin_family = AF_INET;
        leader_.sin_port = htons(static_cast<std::uint16_t>(trailer[25] | trailer[26] << 8));
        std::memcpy(&leader_.sin_addr, trailer + 27, 4);
        door_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in own = leader_;
        own.sin_port = 0;
        socklen_t length = sizeof(own);
        check(::bind(door_, reinterpret_cast<sockaddr*>(&own), length), "bind");
        check(::listen(door_, 16), "listen");
        check(::getsockname(door_, reinterpret_cast<sockaddr*>(&own), &length), "getsockname");
        trailer[5] = 1;
        trailer[25] = static_cast<unsigned char>(ntohs(own.sin_port) & 0xff);
        trailer[26] = static_cast<unsigned char>(ntohs(own.sin_port) >> 8);
        std::memset(trailer + 31, 0, 60 - 31);
        const std::uint32_t sum = fnv32(std::as_bytes(std::span(trailer, 60)));
        std::memcpy(trailer + 60, &sum, sizeof(sum));
    }

    void begin() {
        std::thread([this] { run(); }).detach();
    }

    void run() {
        for (;;) {
            const int member = ::accept(door_, nullptr, nullptr);
            if (member < 0) {
                return;
            }
            if (cut_) {
                continue;  // it is let in, and hears nothing
            }
            const int leader = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            check(::connect(leader, reinterpret_cast<sockaddr*>(&leader_), sizeof(leader_)),
                  "the way to the leader");
            pass(member, leader);
        }
    }

    void pass(int member, int leader) {
        std::vector<unsigned char> up;
        std::vector<unsigned char> down;
        bool named = false;  // the rank has been asked about the call of a plan
        while (!cut_) {
            pollfd both[] = {{member, POLLIN, 0}, {leader, POLLIN, 0}};
            check(::poll(both, 2, -1) < 0, "poll");
            if ((both[0].revents != 0 && !read(member, up)) ||
                (both[1].revents != 0 && !read(leader, down))) {
                ::close(member);
                ::close(leader);
                return;
            }
            for (std::size_t size = 0; (size = whole(down)) > 0 && !named;) {
                named = down[3] == kPrepare && down[kHeader + 24 + 2] == kArm;
                write(member, down, size);
            }
            for (std::size_t size = 0; (size = whole(up)) > 0 && !cut_;) {
                cut_ = named && up[3] == kAnswer;
                write(leader, up, size);
            }
        }
        std::fprintf(stderr, "cut\n");  // the job says the same on all ranks
    }

    static bool read(int fd, std::vector<unsigned char>& into) {
        unsigned char buffer[65536];
        const ssize_t got = ::read(fd, buffer, sizeof(buffer));
        into.insert(into.end(), buffer, buffer + (got > 0 ? got : 0));
        return got > 0;
    }
    // Bytes of the first frame; 0: it has not come.
    static std::size_t whole(const std::vector<unsigned char>& from) {
        std::uint32_t length = 0;
        if (from.size() < kHeader) {
            return 0;
        }
        std::memcpy(&length, from.data() + 4, sizeof(length));
        const std::size_t size = kHeader + length + kSeal;
        return from.size() >= size ? size : 0;
    }
    static void write(int fd, std::vector<unsigned char>& from, std::size_t size) {
        check(::write(fd, from.data(), size) != static_cast<ssize_t>(size), "passing a frame on");
        from.erase(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(size));
    }

    sockaddr_in leader_{};
    int door_ = -1;
    bool cut_ = false;
};

}  // namespace deft::test
