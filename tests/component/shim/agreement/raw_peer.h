// SPDX-License-Identifier: Apache-2.0
// One end of a connection to a rendezvous, as bytes.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/unique_fd.h"
#include "shim/agreement/service.h"
#include "shim/agreement/stream.h"
#include "shim/agreement/wire.h"
#include "tests/component/shim/agreement/council_scene.h"

namespace deft::agreement::test {

inline wire::Trailer trailer_of(const deft_nccl_unique_id_t& id) {
    wire::Trailer trailer;
    EXPECT_EQ(wire::decode(Service::trailer_of(id), trailer), wire::Decoded::Ok);
    return trailer;
}

// from: an IPv4 address of this host; any if it is empty.
inline UniqueFd call(const wire::Trailer& trailer, const char* from = "") {
    const wire::Endpoint& endpoint = trailer.endpoints[0];
    UniqueFd fd(::socket(endpoint.address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage storage;
    Address own;
    if (parse_address(from, own)) {
        const socklen_t size = to_sockaddr(own, 0, storage);
        EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), size), 0);
    }
    const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
    return fd;
}

inline void say(const UniqueFd& fd, std::span<const std::byte> data) {
    (void)::send(fd.get(), data.data(), data.size(), MSG_NOSIGNAL);
}

// Of the council whose trailer it is, from or to a rank of it.
inline std::vector<std::byte> frame(const wire::Trailer& trailer, std::uint32_t rank,
                                    wire::Type type, std::span<const std::byte> payload) {
    return *wire::make_frame(type, wire::council_of(trailer.nonce), rank, payload);
}

// Reads frames of one type from a connection; others before it are skipped.
class Ear {
public:
    explicit Ear(const UniqueFd& fd) : stream_(UniqueFd(::dup(fd.get()))) {}
    // The payload; nothing if the connection ends first.
    std::vector<std::byte> next(wire::Type type) {
        std::vector<std::byte> payload;
        (void)hears(type, &payload);
        return payload;
    }
    bool hears(wire::Type type, std::vector<std::byte>* said = nullptr) {
        const auto deadline = Clock::now() + kPatience;
        while (Clock::now() < deadline) {
            wire::Header header;
            std::span<const std::byte> payload;
            switch (stream_.next(header, payload)) {
                case Stream::Next::Frame:
                    if (header.type == type) {
                        if (said != nullptr) {
                            said->assign(payload.begin(), payload.end());
                        }
                        return true;
                    }
                    continue;
                case Stream::Next::Bad:
                    ADD_FAILURE() << "a frame that is not one";
                    return false;
                case Stream::Next::None: {
                    pollfd entry{ear(), POLLIN, 0};
                    (void)::poll(&entry, 1, 100);
                    if (!stream_.fill()) {
                        return false;
                    }
                }
            }
        }
        return false;
    }

private:
    int ear() { return stream_.fd(); }
    Stream stream_;
};

inline wire::Hello hello_for(const wire::Trailer& trailer, std::uint32_t rank,
                             std::uint32_t nranks) {
    wire::Hello hello;
    hello.nonce = trailer.nonce;
    hello.rank = rank;
    hello.nranks = nranks;
    hello.nccl_version = terms().nccl_version;
    hello.deft_version = DEFT_VERSION;
    hello.host = "elsewhere";
    hello.settings = terms().settings;
    return hello;
}

}  // namespace deft::agreement::test
