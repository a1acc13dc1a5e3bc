// SPDX-License-Identifier: Apache-2.0
// Who gets in at a listener: the one with the secret, whatever strangers do meanwhile.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "plugin/links/tcp_socket.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

// A blocking client of the listener at link 0.
UniqueFd knock(const wire::Handle& handle) {
    const wire::Endpoint& endpoint = handle.endpoints.entries[0];
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage storage;
    const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
    return fd;
}

// True once the peer has closed this connection (or reset it).
bool closed(const UniqueFd& fd, TcpPair& pair, std::vector<std::byte>* heard = nullptr) {
    const Nanos deadline = steady_now() + kPatience;
    std::byte buffer[1024];
    while (steady_now() < deadline) {
        (void)pair.listener->accept(steady_now());
        const ssize_t got = recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            return true;
        }
        if (got > 0 && heard != nullptr) {
            heard->insert(heard->end(), buffer, buffer + got);
        }
    }
    return false;
}

wire::Hello hello_for(const wire::Handle& handle) {
    wire::Hello hello;
    hello.listener = handle.listener;
    hello.secret = handle.secret;
    hello.connection = 1234;
    hello.incarnation = 1;
    hello.path = 0;
    hello.paths = 1;
    return hello;
}

void say(const UniqueFd& fd, const wire::Hello& hello) {
    std::array<std::byte, wire::kHelloBytes> bytes;
    wire::encode(hello, bytes);
    EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
}

wire::Handle decoded(const TcpPair& pair) {
    wire::Handle handle;
    EXPECT_EQ(wire::decode(pair.handle, handle), wire::Decoded::Ok);
    return handle;
}

void expect_works(TcpPair& pair) {
    ASSERT_TRUE(pair.establish());
    const std::vector<std::byte> data = bytes_of(300001, 3);
    std::vector<std::byte> buffer(400000);
    ASSERT_EQ(pair.transfer(data, buffer), 300001);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer.begin()));
}

TEST(Admission, GarbageIsDropped) {
    TcpPair pair(2);
    const UniqueFd stranger = knock(decoded(pair));
    const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n" + std::string(200, 'x');
    ASSERT_GT(send(stranger.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
    EXPECT_TRUE(closed(stranger, pair));
    expect_works(pair);
}

TEST(Admission, WrongSecretIsDroppedWithoutAnAnswer) {
    TcpPair pair(1);
    wire::Hello hello = hello_for(decoded(pair));
    hello.secret[15] ^= 1;
    const UniqueFd stranger = knock(decoded(pair));
    say(stranger, hello);
    std::vector<std::byte> heard;
    EXPECT_TRUE(closed(stranger, pair, &heard));
    EXPECT_TRUE(heard.empty());
    expect_works(pair);
}

TEST(Admission, UnknownListenerIsDropped) {
    TcpPair pair(1);
    wire::Hello hello = hello_for(decoded(pair));
    ++hello.listener;
    const UniqueFd stranger = knock(decoded(pair));
    say(stranger, hello);
    EXPECT_TRUE(closed(stranger, pair));
    expect_works(pair);
}

TEST(Admission, OtherVersionIsToldOurs) {
    TcpPair pair(1);
    wire::Hello hello = hello_for(decoded(pair));
    hello.version = wire::kVersion + 1;
    const UniqueFd stranger = knock(decoded(pair));
    say(stranger, hello);
    std::vector<std::byte> heard;
    EXPECT_TRUE(closed(stranger, pair, &heard));
    ASSERT_EQ(heard.size(), wire::kWelcomeBytes);
    wire::Welcome welcome;
    EXPECT_EQ(wire::decode(std::span<const std::byte, wire::kWelcomeBytes>(heard.data(),
                                                                           wire::kWelcomeBytes),
                           welcome),
              wire::Decoded::Ok);
    EXPECT_EQ(welcome.answer, wire::Answer::WrongVersion);
    expect_works(pair);
}

TEST(Admission, SecondConnectionToOneListenerIsRefused) {
    TcpPair pair(1);
    ASSERT_TRUE(pair.establish());
    const UniqueFd other = knock(decoded(pair));
    say(other, hello_for(decoded(pair)));
    std::vector<std::byte> heard;
    const Nanos deadline = steady_now() + kPatience;
    std::byte buffer[1024];
    while (heard.size() < wire::kWelcomeBytes && steady_now() < deadline) {
        pair.receiver->progress(steady_now());
        const ssize_t got = recv(other.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
        if (got > 0) {
            heard.insert(heard.end(), buffer, buffer + got);
        }
    }
    ASSERT_EQ(heard.size(), wire::kWelcomeBytes);
    wire::Welcome welcome;
    EXPECT_EQ(wire::decode(std::span<const std::byte, wire::kWelcomeBytes>(heard.data(),
                                                                           wire::kWelcomeBytes),
                           welcome),
              wire::Decoded::Ok);
    EXPECT_EQ(welcome.answer, wire::Answer::Refused);
}

TEST(Admission, FloodOfSilentConnectionsIsBounded) {
    TcpPair pair(2);
    std::vector<UniqueFd> silent;
    const wire::Handle handle = decoded(pair);
    for (int i = 0; i < 200; ++i) {
        silent.push_back(knock(handle));
        if (i % 3 == 0) {  // half a hello, never finished
            EXPECT_GT(send(silent.back().get(), "DHEL", 4, MSG_NOSIGNAL), 0);
        }
    }
    std::string problem;
    const auto acceptor = TcpAcceptor::process(pair.device, problem);
    const Nanos deadline = steady_now() + kPatience;
    while (acceptor->strangers() < 100 && steady_now() < deadline) {
        (void)pair.listener->accept(steady_now());
        ASSERT_LE(acceptor->pending(), 64U);
    }
    EXPECT_GE(acceptor->strangers(), 100U);
    expect_works(pair);
}

TEST(Admission, DamagedAndForeignHandlesAreRefused) {
    TcpPair pair(1);
    for (const auto& [at, value] : {std::pair{0, 0}, {4, 77}, {6, 255}}) {
        TcpPair broken(1);
        broken.handle[static_cast<std::size_t>(at)] = static_cast<std::byte>(value);
        EXPECT_FALSE(broken.establish());
        EXPECT_NE(broken.result, DEFT_NET_SUCCESS);
    }
    expect_works(pair);
}

TEST(Admission, ForgedAttemptNumberStartsANewOne) {
    TcpPair pair(1);
    wire::set_attempt(pair.handle, 0x4141414141414141);
    expect_works(pair);
}

TEST(Admission, ListenerClosedWithoutAcceptLeavesNothing) {
    std::weak_ptr<TcpAcceptor> acceptor;
    {
        TcpPair pair(2);
        std::string problem;
        acceptor = TcpAcceptor::process(pair.device, problem);
        EXPECT_FALSE(pair.step());
    }
    EXPECT_TRUE(acceptor.expired());
    forget_attempts(steady_now(), true);
}

}  // namespace
}  // namespace deft::net::testing
