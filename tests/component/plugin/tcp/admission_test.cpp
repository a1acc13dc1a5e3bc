// SPDX-License-Identifier: Apache-2.0
// Who gets in at a listener: the one with the secret, whatever strangers do meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>

#include "plugin/tcp/tcp_dialer.h"
#include "tests/component/plugin/tcp/admission.h"

namespace deft::net::testing {
namespace {

TEST(Admission, GarbageIsDropped) {
    TcpPair pair(2);
    const UniqueFd stranger = next(decoded(pair));
    const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n" + std::string(200, 'x');
    ASSERT_GT(send(stranger.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
    EXPECT_TRUE(closed(stranger, pair));
    expect_works(pair);
}

TEST(Admission, WrongSecretIsDroppedWithoutAnAnswer) {
    TcpPair pair(1);
    wire::Hello hello = hello_for(decoded(pair));
    hello.secret[15] ^= 1;
    const UniqueFd stranger = next(decoded(pair));
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
    const UniqueFd stranger = next(decoded(pair));
    say(stranger, hello);
    EXPECT_TRUE(closed(stranger, pair));
    expect_works(pair);
}

TEST(Admission, OtherVersionIsToldOurs) {
    TcpPair pair(1);
    wire::Hello hello = hello_for(decoded(pair));
    hello.version = wire::kVersion + 1;
    const UniqueFd stranger = next(decoded(pair));
    say(stranger, hello);
    std::vector<std::byte> heard;
    ::testing::internal::CaptureStderr();
    const bool ended = closed(stranger, pair, &heard);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(ended);
    // One line a process; this test may be repeated in one.
    static int times = 0;
    EXPECT_EQ(said.find("install the same release on all hosts") != std::string::npos, times++ == 0)
        << said;
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
    const UniqueFd other = next(decoded(pair));
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

TEST(Admission, SlowHelloRunsIntoItsDeadline) {
    TcpPair pair(1);
    const UniqueFd slow = next(decoded(pair));
    ASSERT_GT(send(slow.get(), "DHEL", 4, MSG_NOSIGNAL), 0);
    std::string problem;
    const auto acceptor = TcpAcceptor::process(pair.device, problem);
    Nanos clock = steady_now();
    const Nanos begin = clock;
    const Nanos deadline = steady_now() + kPatience;
    while (acceptor->pending() == 0 && steady_now() < deadline) {
        (void)pair.listener->accept(clock += 2 * kMillisecond);
    }
    EXPECT_EQ(acceptor->pending(), 1U);
    while (acceptor->pending() == 1 && steady_now() < deadline) {
        (void)pair.listener->accept(clock += 2 * kMillisecond);
    }
    EXPECT_EQ(acceptor->pending(), 0U);
    EXPECT_GE(clock - begin, 5 * kSecond);  // of a clock of its own
    EXPECT_LT(clock - begin, 6 * kSecond);
}

// Whoever could read a hello and says it again is no better off than one who is late.
TEST(Admission, ReplayedHelloDoesNotDisturb) {
    TcpPair pair(1);
    const wire::Hello hello = hello_for(decoded(pair));
    const UniqueFd first = next(decoded(pair));
    say(first, hello);
    const Nanos deadline = steady_now() + kPatience;
    while (pair.receiver == nullptr && steady_now() < deadline) {
        pair.receiver = pair.listener->accept(steady_now());
    }
    ASSERT_NE(pair.receiver, nullptr);
    for (int i = 0; i < 40; ++i) {
        const UniqueFd again = next(decoded(pair));
        say(again, hello);
        EXPECT_TRUE([&] {
            while (steady_now() < deadline) {
                std::byte buffer[1024];
                pair.receiver->progress(steady_now());
                const ssize_t got = recv(again.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
                if (got == 0 || (got < 0 && errno != EAGAIN)) {
                    return true;
                }
            }
            return false;
        }());
    }
    std::vector<std::byte> buffer(100);
    Request* receive = pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now());
    ASSERT_NE(receive, nullptr);
    wire::ChunkHeader header;
    header.chunk.total = header.chunk.chunk_size = header.chunk.length = 3;
    std::array<std::byte, wire::kChunkBytes> bytes;
    wire::encode(header, bytes);
    ASSERT_EQ(send(first.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(send(first.get(), "abc", 3, MSG_NOSIGNAL), 3);
    std::size_t size = 0;
    while (!pair.receiver->test(receive, steady_now(), &size) && steady_now() < deadline) {
        ASSERT_FALSE(pair.receiver->failure());
    }
    EXPECT_EQ(size, 3U);
    EXPECT_EQ(std::memcmp(buffer.data(), "abc", 3), 0);
}

// What the other side hears of a release that does not fit.
TEST(Admission, SenderSaysPlainlyThatVersionsDiffer) {
    const auto device = loopback_device(1);
    std::uint16_t port = 0;
    std::string problem;
    const UniqueFd listener = listen_on(device->links[0].addresses[0], port, problem);
    ASSERT_TRUE(listener) << problem;
    Route route;
    route.candidates = {{device->links[0].addresses[0], {0, port, device->links[0].addresses[0]}}};
    TcpDialer dialer(device, route, wire::Hello{}, TcpDialer::Options{});
    dialer.start(1, steady_now());
    wire::Welcome welcome;
    welcome.version = wire::kVersion + 7;
    std::array<std::byte, wire::kWelcomeBytes> bytes;
    wire::encode(welcome, bytes);
    UniqueFd accepted;
    Connected connected;
    Dialer::Result result = Dialer::Result::Pending;
    const Nanos deadline = steady_now() + kPatience;
    while (result == Dialer::Result::Pending && steady_now() < deadline) {
        if (!accepted) {
            accepted.reset(accept(listener.get(), nullptr, nullptr));
            if (accepted) {
                EXPECT_EQ(send(accepted.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                          static_cast<ssize_t>(bytes.size()));
            }
        }
        result = dialer.poll(steady_now(), connected);
    }
    EXPECT_EQ(result, Dialer::Result::Fatal);
    EXPECT_THAT(dialer.failure(), ::testing::HasSubstr("protocol version 10, this one 2 to 3"));
    EXPECT_THAT(dialer.failure(), ::testing::HasSubstr("install the same release"));
}

// Says hello as a release of that version, and takes the welcome.
std::uint16_t version_of_welcome(std::uint16_t version) {
    TcpPair pair(1);
    wire::Hello hello = hello_for(decoded(pair));
    hello.version = version;
    hello.flags = wire::kFlagAsk;
    const UniqueFd guest = next(decoded(pair));
    say(guest, hello);
    std::vector<std::byte> heard;
    EXPECT_TRUE(closed(guest, pair, &heard));
    wire::Welcome welcome;
    EXPECT_EQ(heard.size(), wire::kWelcomeBytes);
    if (heard.size() == wire::kWelcomeBytes) {
        EXPECT_EQ(wire::decode(std::span<const std::byte, wire::kWelcomeBytes>(heard.data(),
                                                                               wire::kWelcomeBytes),
                               welcome),
                  wire::Decoded::Ok);
        EXPECT_EQ(welcome.answer, wire::Answer::Accepted);
    }
    return welcome.version;
}

TEST(Admission, TheReceiverAnswersInTheVersionThatItIsAskedIn) {
    EXPECT_EQ(version_of_welcome(wire::kOldestVersion), wire::kOldestVersion);
    EXPECT_EQ(version_of_welcome(wire::kVersion), wire::kVersion);
}

// Reads from `fd` while the pair goes on, until so many bytes are there.
template <std::size_t N>
bool hear(const UniqueFd& fd, std::array<std::byte, N>& bytes, const std::function<void()>& go_on) {
    std::size_t got = 0;
    for (const Nanos deadline = steady_now() + kPatience; steady_now() < deadline;) {
        go_on();
        const ssize_t more =
            recv(fd.get(), bytes.data() + got, bytes.size() - got, MSG_DONTWAIT | MSG_NOSIGNAL);
        got += more > 0 ? static_cast<std::size_t>(more) : 0;
        if (got == N || more == 0) {
            return got == N;
        }
    }
    return false;
}

// A path's welcome, and what a receiver that has lost its path asks the sender's host, are of the
// version of the path's hello.
TEST(Admission, APathIsInTheVersionOfItsHello) {
    for (const std::uint16_t version : {wire::kOldestVersion, wire::kVersion}) {
        TcpPair pair(1);
        wire::Hello hello = hello_for(decoded(pair));
        hello.version = version;
        std::string problem;
        EXPECT_TRUE(parse_address("127.0.0.9", hello.home.address));
        const UniqueFd home = listen_on(hello.home.address, hello.home.port, problem);
        ASSERT_TRUE(home) << problem;
        UniqueFd path = next(decoded(pair), "127.0.0.9");
        say(path, hello);
        std::array<std::byte, wire::kWelcomeBytes> welcome_bytes;
        ASSERT_TRUE(hear(path, welcome_bytes, [&] {
            if (pair.receiver == nullptr) {
                pair.receiver = pair.listener->accept(steady_now());
            }
        }));
        wire::Welcome welcome;
        ASSERT_EQ(wire::decode(welcome_bytes, welcome), wire::Decoded::Ok);
        EXPECT_EQ(welcome.version, version);
        ASSERT_NE(pair.receiver, nullptr);

        std::array<std::byte, 64> buffer;
        ASSERT_NE(pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now()), nullptr);
        path.reset();
        UniqueFd asks;
        for (const Nanos deadline = steady_now() + kPatience; !asks && steady_now() < deadline;) {
            pair.receiver->progress(steady_now());
            asks.reset(accept4(home.get(), nullptr, nullptr, SOCK_NONBLOCK));
        }
        std::array<std::byte, wire::kHelloBytes> question_bytes;
        ASSERT_TRUE(hear(asks, question_bytes, [&] { pair.receiver->progress(steady_now()); }));
        wire::Hello question;
        ASSERT_EQ(wire::decode(question_bytes, question), wire::Decoded::Ok);
        EXPECT_EQ(question.flags, wire::kFlagAlive);
        EXPECT_EQ(question.version, version);
        pair.receiver.reset();  // before its memory
    }
}

// Nothing was offered to whoever asks for a path of another kind, or one of a kind unknown here.
TEST(Admission, APathOfAKindThatWasNotOfferedIsRefused) {
    TcpPair pair(1);
    for (const int kind : {1, 2, 255}) {
        wire::Hello hello = hello_for(decoded(pair));
        hello.kind = static_cast<std::uint8_t>(kind);
        hello.flags = wire::kFlagMixed;
        const UniqueFd stranger = next(decoded(pair));
        say(stranger, hello);
        std::array<std::byte, wire::kWelcomeBytes> bytes;
        ASSERT_TRUE(hear(stranger, bytes, [&] { (void)pair.listener->accept(steady_now()); }))
            << kind;
        wire::Welcome welcome;
        ASSERT_EQ(wire::decode(bytes, welcome), wire::Decoded::Ok);
        EXPECT_EQ(welcome.answer, wire::Answer::Refused);
    }
    expect_works(pair);
}

// What a sender says to a listener whose handle is of that release.
std::uint16_t version_of_hello(std::uint16_t oldest, std::uint16_t newest) {
    const auto device = loopback_device(1);
    wire::Handle handle;
    handle.version = oldest;
    handle.newest = newest;
    handle.total = 1;
    handle.endpoints.count = 1;
    handle.endpoints.entries[0].address = device->links[0].addresses[0];
    std::string problem;
    const UniqueFd listener =
        listen_on(device->links[0].addresses[0], handle.endpoints.entries[0].port, problem);
    EXPECT_TRUE(listener) << problem;
    std::array<std::byte, wire::kHandleBytes> bytes;
    wire::encode(handle, bytes);
    std::unique_ptr<Sender> sender;
    std::array<std::byte, wire::kHelloBytes> hello_bytes{};
    std::size_t got = 0;
    UniqueFd accepted;
    const Nanos deadline = steady_now() + kPatience;
    while (got < hello_bytes.size() && steady_now() < deadline) {
        if (connect(
                device, [] { return ConnectionOptions(); }, bytes, steady_now(), sender) !=
            DEFT_NET_SUCCESS) {
            break;
        }
        if (!accepted) {
            accepted.reset(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
        } else if (const ssize_t more =
                       recv(accepted.get(), hello_bytes.data() + got, hello_bytes.size() - got, 0);
                   more > 0) {
            got += static_cast<std::size_t>(more);
        }
    }
    wire::Hello hello;
    EXPECT_EQ(wire::decode(hello_bytes, hello), wire::Decoded::Ok);
    return hello.version;
}

TEST(Admission, TheSenderSpeaksTheNewestVersionThatTheListenerDoes) {
    EXPECT_EQ(version_of_hello(2, 2), 2);
    EXPECT_EQ(version_of_hello(wire::kOldestVersion, wire::kVersion), wire::kVersion);
    EXPECT_EQ(version_of_hello(wire::kVersion, wire::kVersion + 1), wire::kVersion);
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
    forget_attempts(steady_now(), true);  // who connects listens, too
    EXPECT_TRUE(acceptor.expired());
}

}  // namespace
}  // namespace deft::net::testing
