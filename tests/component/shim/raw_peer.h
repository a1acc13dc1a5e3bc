// SPDX-License-Identifier: Apache-2.0
// One end of a connection to a rendezvous, as bytes.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "shim/agreement/service.h"
#include "shim/agreement/wire.h"
#include "tests/component/shim/council_scene.h"
#include "topology/base/unique_fd.h"

namespace deft::agreement::test {

inline wire::Trailer trailer_of(const deft_nccl_unique_id_t& id) {
    wire::Trailer trailer;
    EXPECT_EQ(wire::decode(Service::trailer_of(id), trailer), wire::Decoded::Ok);
    return trailer;
}

inline UniqueFd call(const wire::Trailer& trailer) {
    const wire::Endpoint& endpoint = trailer.endpoints[0];
    UniqueFd fd(::socket(endpoint.address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage storage;
    const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
    return fd;
}

inline void say(const UniqueFd& fd, std::span<const std::byte> data) {
    (void)::send(fd.get(), data.data(), data.size(), MSG_NOSIGNAL);
}

inline std::vector<std::byte> frame(wire::Type type, std::span<const std::byte> payload) {
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::encode({type, static_cast<std::uint32_t>(payload.size())}, header);
    std::vector<std::byte> out(header.size() + payload.size());
    std::copy(header.begin(), header.end(), out.begin());
    std::copy(payload.begin(), payload.end(), out.begin() + header.size());
    return out;
}

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
