// SPDX-License-Identifier: Apache-2.0
// Which congestion control sending sockets get, on real sockets of this host.
#include "plugin/tcp/congestion.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <functional>
#include <vector>

#include "base/unique_fd.h"
#include "plugin/tcp/tcp_path.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

std::string control_of(int fd) {
    std::array<char, 17> name{};
    socklen_t length = name.size() - 1;
    return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length) == 0 ? name.data()
                                                                                  : "";
}

bool take(const UniqueFd& fd, const std::string& name) {
    return setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name.c_str(),
                      static_cast<socklen_t>(name.size())) == 0;
}

UniqueFd tcp_socket() {
    return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

// A socket as on a host whose default is BBR, and somebody to connect to.
class OnABbrHost : public ::testing::Test {
protected:
    void SetUp() override {
        socklen_t length = sizeof(address_);
        address_.sin_family = AF_INET;
        address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ASSERT_EQ(bind(server_.get(), reinterpret_cast<sockaddr*>(&address_), length), 0);
        ASSERT_EQ(listen(server_.get(), 4), 0);
        ASSERT_EQ(getsockname(server_.get(), reinterpret_cast<sockaddr*>(&address_), &length), 0);
        const int kilobyte = 1000;  // many segments in few bytes
        ASSERT_EQ(setsockopt(client_.get(), IPPROTO_TCP, TCP_MAXSEG, &kilobyte, sizeof(kilobyte)),
                  0);
        if (!take(tcp_socket(), "cubic") || !take(client_, "bbr")) {
            GTEST_SKIP() << "this host does not let us choose between cubic and bbr";
        }
    }

    std::string after_connecting(Congestion congestion) {
        congestion.begin(client_.get());
        EXPECT_EQ(connect(client_.get(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_)),
                  0);
        watch_ = congestion.connected(client_.get());
        peer_.reset(accept4(server_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        EXPECT_TRUE(peer_);
        return control_of(client_.get());
    }

    // The peer's host takes all packets but one of `one_of`, at random.
    void lose_one_of(std::uint32_t one_of) {
        std::array<sock_filter, 5> some{
            sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0,
                        static_cast<std::uint32_t>(SKF_AD_OFF + SKF_AD_RANDOM)},
            {BPF_ALU | BPF_MOD | BPF_K, 0, 0, one_of},
            {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0},
            {BPF_RET | BPF_K, 0, 0, 0},
            {BPF_RET | BPF_K, 0, 0, 0xffffffff}};
        const sock_fprog program{some.size(), some.data()};
        ASSERT_EQ(setsockopt(peer_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)),
                  0);
    }
    void lose_nothing() {
        const int none = 0;
        ASSERT_EQ(setsockopt(peer_.get(), SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none)), 0);
    }

    // Sends until `done`, or until `most` bytes arrived.
    void exchange(int fd, std::size_t most, const std::function<bool()>& done) {
        std::vector<char> bytes(65536);
        std::size_t sent = 0;
        std::size_t received = 0;
        const Nanos deadline = steady_now() + kPatience;
        while (!done() && received < most) {
            ASSERT_LT(steady_now(), deadline) << received << " bytes arrived";
            const std::size_t wanted = std::min(bytes.size(), most - sent);
            const ssize_t out = send(fd, bytes.data(), wanted, MSG_NOSIGNAL | MSG_DONTWAIT);
            sent += out > 0 ? static_cast<std::size_t>(out) : 0;
            const ssize_t in = recv(peer_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
            received += in > 0 ? static_cast<std::size_t>(in) : 0;
        }
    }

    std::uint32_t sent_again() {
        tcp_info info{};
        socklen_t length = sizeof(info);
        EXPECT_EQ(getsockopt(client_.get(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
        return info.tcpi_total_retrans;
    }

    sockaddr_in address_{};
    UniqueFd server_ = tcp_socket();
    UniqueFd client_ = tcp_socket();
    UniqueFd peer_;
    LossWatch watch_;
};

TEST_F(OnABbrHost, NearPathsHaveCubic) {
    EXPECT_EQ(after_connecting(Congestion("auto")), "cubic");
}

// By a path's own regular look, on the socket that is in use.
TEST_F(OnABbrHost, LossBringsTheHostsOwnBack) {
    constexpr int kLink = 4711;
    ASSERT_EQ(after_connecting(Congestion("auto", kLink)), "cubic");
    const UniqueFd same(dup(client_.get()));
    TcpPath::Options options;
    options.losses = watch_;
    TcpPath path(std::move(client_), TcpPath::Role::Sender, "test", options);
    Nanos now = steady_now();
    lose_one_of(50);
    exchange(same.get(), 64 << 20, [&] {
        path.look_after(now += kSecond);
        return control_of(same.get()) != "cubic";
    });
    EXPECT_EQ(control_of(same.get()), "bbr");
    // From the start on later paths of this link, and of no other.
    for (const auto& [link, expected] : {std::pair{kLink, "bbr"}, {kLink + 1, "cubic"}}) {
        client_ = tcp_socket();
        ASSERT_TRUE(take(client_, "bbr"));
        EXPECT_EQ(after_connecting(Congestion("auto", link)), expected);
    }
}

TEST_F(OnABbrHost, APacketThatIsLostOnceChangesNothing) {
    ASSERT_EQ(after_connecting(Congestion("auto")), "cubic");
    lose_one_of(1);
    ASSERT_EQ(send(client_.get(), "x", 1, MSG_NOSIGNAL), 1);
    exchange(client_.get(), 1, [this] { return sent_again() > 0; });
    ASSERT_GT(sent_again(), 0U);
    lose_nothing();
    exchange(client_.get(), 8 << 20, [this] {
        watch_.look(client_.get());
        return false;
    });
    EXPECT_EQ(control_of(client_.get()), "cubic");
}

TEST_F(OnABbrHost, LossChangesNothingThatWasChosen) {
    ASSERT_EQ(after_connecting(Congestion("cubic")), "cubic");
    lose_one_of(50);
    exchange(client_.get(), 64 << 20, [this] {
        watch_.look(client_.get());
        return sent_again() > 40;  // more than two windows want
    });
    EXPECT_GT(sent_again(), 0U);
    EXPECT_EQ(control_of(client_.get()), "cubic");
}

TEST_F(OnABbrHost, FarPathsHaveBbr) {
    EXPECT_EQ(after_connecting(Congestion("auto", 0, 0)), "bbr");
}

TEST_F(OnABbrHost, TheHostsDefaultIsLeftAloneOnRequest) {
    EXPECT_EQ(after_connecting(Congestion("system")), "bbr");
}

TEST_F(OnABbrHost, ANameIsTakenOnFarPathsToo) {
    EXPECT_EQ(after_connecting(Congestion("reno", 0, 0)), "reno");
}

TEST_F(OnABbrHost, AnUnknownNameLeavesTheDefault) {
    EXPECT_EQ(after_connecting(Congestion("no-such-control")), "bbr");
}

TEST(LossRate, IsTooHighTwiceOnEnd) {
    LossRate rate;
    EXPECT_FALSE(rate.lossy({999, 10})) << "too few to judge by";
    EXPECT_FALSE(rate.lossy({1000, 10}));
    EXPECT_FALSE(rate.lossy({1999, 11}));
    EXPECT_TRUE(rate.lossy({2000, 11}));
}

// It stands still most of the time.
TEST(LossRate, APathThatLosesMuchIsKnownSoon) {
    LossRate rate;
    EXPECT_FALSE(rate.lossy({150, 19}));
    EXPECT_FALSE(rate.lossy({160, 20}));
    EXPECT_TRUE(rate.lossy({320, 40}));
}

TEST(LossRate, OneLossyWindowIsForgotten) {
    LossRate rate;
    EXPECT_FALSE(rate.lossy({1000, 300}));
    EXPECT_FALSE(rate.lossy({3000, 301})) << "one of two thousand";
    EXPECT_FALSE(rate.lossy({4000, 302}));
    EXPECT_TRUE(rate.lossy({5000, 303}));
}

// Of a fast path that is looked at seldom, the rate counts and not the number.
TEST(LossRate, SeldomLooksChangeNothing) {
    LossRate rate;
    std::uint32_t lost = 0;
    for (std::uint32_t sent = 100'000; sent < 1'000'000; sent += 100'000) {
        EXPECT_FALSE(rate.lossy({sent, lost += 99}));
    }
}

TEST(LossRate, CountersWrapAndLossesAreTakenBack) {
    LossRate rate;
    EXPECT_FALSE(rate.lossy({0xfffffe00, 0xfffffff0}));
    EXPECT_FALSE(rate.lossy({0x400, 0xffffffe0})) << "fewer than before: they had only been late";
    EXPECT_FALSE(rate.lossy({0x800, 0x10}));
    EXPECT_TRUE(rate.lossy({0xc00, 0x20}));
}

TEST(Congestion, WhatIsNotBbrIsLeftAlone) {
    const UniqueFd fd = tcp_socket();
    ASSERT_TRUE(take(fd, "reno"));  // the kernel lets everyone take it
    Congestion congestion("auto");
    congestion.begin(fd.get());
    EXPECT_EQ(control_of(fd.get()), "reno");
}

TEST(Congestion, OfAConnectionIsThatOfItsOptions) {
    if (control_of(tcp_socket().get()) == "reno") {
        GTEST_SKIP() << "reno is this host's default: nothing to see";
    }
    ConnectionOptions options;
    options.congestion = "reno";
    TcpPair pair(2, 30 * kSecond, options);
    ASSERT_TRUE(pair.establish());
    int changed = 0;
    for (int fd = 0; fd < 1024; ++fd) {
        changed += control_of(fd) == "reno" ? 1 : 0;
    }
    EXPECT_EQ(changed, 2) << "the sender's end of each path";
}

}  // namespace
}  // namespace deft::net::testing
