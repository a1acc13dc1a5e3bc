// SPDX-License-Identifier: Apache-2.0
// Pairs of addresses that do not reach each other, and hosts with more addresses than fit a handle.
#include "plugin/tcp/reach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "plugin/tcp/tcp_dialer.h"
#include "plugin/tcp/tcp_socket.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

using ::testing::HasSubstr;

Address loopback(const char* text) {
    Address address;
    EXPECT_TRUE(parse_address(text, address));
    return address;
}

// Listens and answers no connection request: its queue is full.
class StuckListener {
public:
    explicit StuckListener(const char* address) : address_(loopback(address)) {
        fd_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_storage storage;
        socklen_t length = to_sockaddr(address_, 0, storage);
        auto* name = reinterpret_cast<sockaddr*>(&storage);
        EXPECT_EQ(bind(fd_.get(), name, length), 0);
        EXPECT_EQ(listen(fd_.get(), 0), 0);
        length = sizeof(storage);
        EXPECT_EQ(getsockname(fd_.get(), name, &length), 0);
        EXPECT_TRUE(from_sockaddr(name, address_, &port_));
        for (int i = 0; i < 4; ++i) {
            UniqueFd& client =
                clients_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
            (void)::connect(client.get(), name, length);
        }
    }
    wire::Endpoint endpoint(std::uint8_t link) const { return {link, port_, address_}; }

private:
    Address address_;
    std::uint16_t port_ = 0;
    UniqueFd fd_;
    std::vector<UniqueFd> clients_;
};

class ReachTest : public ::testing::Test {
protected:
    void SetUp() override { Reach::forget_all(); }
    void TearDown() override { Reach::forget_all(); }
};

// Connects on a clock of its own; how much of its time that took, -1 if it failed.
Nanos establish(TcpPair& pair, Nanos& clock) {
    const Nanos begin = clock;
    const Nanos give_up = steady_now() + kPatience;
    while (pair.sender == nullptr || pair.receiver == nullptr) {
        clock += 1100 * kMicrosecond;
        if (pair.sender == nullptr &&
            connect(
                pair.device, [&] { return pair.options; }, pair.handle, clock, pair.sender) != 0) {
            return -1;
        }
        if (pair.receiver == nullptr) {
            pair.receiver = pair.listener->accept(clock);
        }
        if (steady_now() > give_up) {
            return -1;
        }
    }
    return clock - begin;
}

TEST_F(ReachTest, RemembersAndForgets) {
    const Address own = loopback("10.0.0.1");
    const Address peer = loopback("10.0.0.2");
    EXPECT_FALSE(Reach::known_dead(own, peer));
    Reach::dead(own, peer);
    Reach::dead(own, peer);
    EXPECT_TRUE(Reach::known_dead(own, peer));
    EXPECT_FALSE(Reach::known_dead(peer, own));
    Reach::alive(own, peer);
    EXPECT_FALSE(Reach::known_dead(own, peer));
    for (std::size_t i = 0; i <= Reach::kMaxPairs; ++i) {
        Address far = peer;
        far.bytes[1] = static_cast<std::uint8_t>(i >> 8);
        far.bytes[2] = static_cast<std::uint8_t>(i);
        Reach::dead(own, far);
    }
    Address first = peer;
    first.bytes[1] = first.bytes[2] = 0;
    EXPECT_FALSE(Reach::known_dead(own, first));  // the oldest had to go
}

TEST_F(ReachTest, OnlyTheFirstConnectionWaitsForADeadPair) {
    const StuckListener stuck("127.0.0.3");
    Nanos clock = steady_now();
    for (const bool first : {true, false}) {
        TcpPair pair(2);
        wire::Handle handle;
        ASSERT_EQ(wire::decode(pair.handle, handle), wire::Decoded::Ok);
        handle.endpoints.entries[1] = stuck.endpoint(1);
        wire::encode(handle, pair.handle);
        const Nanos took = establish(pair, clock);
        ASSERT_GE(took, 0);
        if (first) {
            EXPECT_GT(took, kSecond);  // the pair is dead indeed
            EXPECT_TRUE(Reach::known_dead(loopback("127.0.0.3"), loopback("127.0.0.3")));
        } else {
            EXPECT_LT(took, 500 * kMillisecond);
        }
    }
}

TEST_F(ReachTest, KnownDeadFailsAtOnceAndIsTriedTheNextTime) {
    const auto device = loopback_device(2);
    const StuckListener stuck("127.0.0.3");
    Route route;
    route.link = 1;
    route.candidates = {{loopback("127.0.0.3"), stuck.endpoint(1)}};
    EXPECT_FALSE(known_dead(route, device->links[1]));
    Reach::dead(loopback("127.0.0.3"), loopback("127.0.0.3"));
    EXPECT_TRUE(known_dead(route, device->links[1]));
    TcpDialer::Options options;
    options.pass_over = true;
    TcpDialer dialer(device, route, wire::Hello{}, options);
    Connected connected;
    dialer.start(1, 0);
    EXPECT_EQ(dialer.poll(0, connected), Dialer::Result::Silent);
    EXPECT_THAT(dialer.failure(), HasSubstr("unreachable before"));
    dialer.start(2, 0);
    EXPECT_EQ(dialer.poll(0, connected), Dialer::Result::Pending);
    EXPECT_EQ(dialer.poll(2 * kSecond, connected), Dialer::Result::Silent);
    EXPECT_THAT(dialer.failure(), HasSubstr("no answer"));
}

// The receiver is told which paths not to wait for.
TEST_F(ReachTest, ReceiverDoesNotWaitForAbsentPaths) {
    TcpPair pair(2);
    wire::Handle handle;
    ASSERT_EQ(wire::decode(pair.handle, handle), wire::Decoded::Ok);
    const wire::Endpoint& endpoint = handle.endpoints.entries[0];
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage storage;
    const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
    wire::Hello hello;
    hello.listener = handle.listener;
    hello.secret = handle.secret;
    hello.connection = 5;
    hello.incarnation = 1;
    hello.paths = 2;
    hello.absent = 2;
    std::array<std::byte, wire::kHelloBytes> bytes;
    wire::encode(hello, bytes);
    ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    Nanos clock = steady_now();
    const Nanos begin = clock;
    const Nanos give_up = steady_now() + kPatience;
    while (pair.receiver == nullptr && steady_now() < give_up) {
        clock += 1100 * kMicrosecond;
        pair.receiver = pair.listener->accept(clock);
    }
    ASSERT_NE(pair.receiver, nullptr);
    EXPECT_LT(clock - begin, kSecond);
}

TEST(Overflow, EndpointsThatDoNotFitTheHandleAreAskedFor) {
    for (const std::size_t links : {10U, 12U, 16U}) {
        TcpPair pair(links);
        wire::Handle handle;
        ASSERT_EQ(wire::decode(pair.handle, handle), wire::Decoded::Ok);
        EXPECT_EQ(handle.endpoints.count, 10U);
        EXPECT_EQ(handle.total, links);
        Nanos clock = steady_now();
        const Nanos took = establish(pair, clock);
        ASSERT_GE(took, 0);
        EXPECT_LT(took, 5 * kSecond);  // there was an answer
        EXPECT_EQ(pair.sender->paths(), links);
        for (std::size_t path = 0; path < links; ++path) {
            EXPECT_EQ(pair.sender->state(path), PathState::Up) << path;
        }
        const std::vector<std::byte> data = bytes_of(3000001, 4);
        std::vector<std::byte> buffer(4000000);
        ASSERT_EQ(pair.transfer(data, buffer), 3000001);
        EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer.begin()));
        const std::string last = "127.0.0." + std::to_string(links + 1);
        EXPECT_GT(LinkStats::process().link(last.c_str(), "tcp").bytes_received.load(), 0U) << last;
    }
}

// Nobody who does not know the secret learns the addresses.
TEST(Overflow, AQuestionNeedsTheSecret) {
    TcpPair pair(12);
    pair.handle[20] ^= std::byte{1};  // a byte of the secret
    const Nanos begin = steady_now();
    Nanos clock = begin;
    while (clock - begin < 5 * kSecond) {
        clock += 50 * kMillisecond;
        ASSERT_EQ(connect(
                      pair.device, [&] { return pair.options; }, pair.handle, clock, pair.sender),
                  0);
        EXPECT_EQ(pair.listener->accept(clock), nullptr);
        EXPECT_EQ(pair.sender, nullptr);
    }
    std::string problem;
    EXPECT_GT(TcpAcceptor::process(pair.device, problem)->strangers(), 0U);
    forget_attempts(clock, true);
}

// A rank that is minutes late for its first collective has not called accept yet: connect goes on
// waiting, and still gets all of its links.
TEST(LateAccept, ConnectWaitsForAPeerWhoseHostAnswers) {
    for (const std::size_t links : {1U, 2U, 12U}) {
        TcpPair pair(links, 5 * kSecond);
        const Nanos begin = steady_now();
        Nanos clock = begin;
        while (clock - begin < 100 * kSecond) {
            clock += 20 * kMillisecond;
            ASSERT_EQ(
                connect(
                    pair.device, [&] { return pair.options; }, pair.handle, clock, pair.sender),
                0)
                << (clock - begin) / kMillisecond << " ms, " << links << " links";
            ASSERT_EQ(pair.sender, nullptr);
        }
        ASSERT_GE(establish(pair, clock), 0);
        ASSERT_EQ(pair.sender->paths(), links);
        for (std::size_t path = 0; path < links; ++path) {
            EXPECT_EQ(pair.sender->state(path), PathState::Up) << path << " of " << links;
        }
    }
}

// Nobody listens: there is nothing to wait for.
TEST(LateAccept, ConnectEndsWhereTheListenerIsGone) {
    TcpPair pair(2, 5 * kSecond);
    pair.listener.reset();
    const Nanos begin = steady_now();
    Nanos clock = begin;
    while (clock - begin < 60 * kSecond &&
           connect(
               pair.device, [&] { return pair.options; }, pair.handle, clock, pair.sender) == 0) {
        clock += 20 * kMillisecond;
    }
    EXPECT_GT(clock - begin, 4 * kSecond);
    EXPECT_LT(clock - begin, 7 * kSecond);
}

}  // namespace
}  // namespace deft::net::testing
