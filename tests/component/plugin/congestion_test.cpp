// SPDX-License-Identifier: Apache-2.0
// Which congestion control sending sockets get, on real sockets of this host.
#include "plugin/links/congestion.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "plugin/links/tcp_path.h"
#include "tests/component/plugin/tcp_pair.h"
#include "topology/base/unique_fd.h"

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
        if (!take(tcp_socket(), "cubic") || !take(client_, "bbr")) {
            GTEST_SKIP() << "this host does not let us choose between cubic and bbr";
        }
    }

    std::string after_connecting(Congestion congestion) {
        congestion.begin(client_.get());
        EXPECT_EQ(connect(client_.get(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_)),
                  0);
        watch_ = congestion.connected(client_.get());
        return control_of(client_.get());
    }

    // Sends a byte whose first packets the peer's host does not take.
    void lose_packets() {
        const UniqueFd peer(accept4(server_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        ASSERT_TRUE(peer);
        sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
        const sock_fprog program{1, &nothing};
        ASSERT_EQ(setsockopt(peer.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)),
                  0);
        ASSERT_EQ(send(client_.get(), "x", 1, MSG_NOSIGNAL), 1);
        tcp_info info{};
        const Nanos deadline = steady_now() + kPatience;
        while (info.tcpi_total_retrans == 0 && steady_now() < deadline) {
            socklen_t length = sizeof(info);
            ASSERT_EQ(getsockopt(client_.get(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
        }
        ASSERT_GT(info.tcpi_total_retrans, 0U);
    }

    sockaddr_in address_{};
    UniqueFd server_ = tcp_socket();
    UniqueFd client_ = tcp_socket();
    LossWatch watch_;
};

TEST_F(OnABbrHost, NearPathsHaveCubic) {
    EXPECT_EQ(after_connecting(Congestion("auto")), "cubic");
}

// By a path's own regular look, on the socket that is in use.
TEST_F(OnABbrHost, LossBringsTheHostsOwnBack) {
    constexpr int kLink = 4711;
    ASSERT_EQ(after_connecting(Congestion("auto", kLink)), "cubic");
    watch_.look(client_.get());
    EXPECT_EQ(control_of(client_.get()), "cubic");
    const UniqueFd same(dup(client_.get()));
    lose_packets();
    TcpPath::Options options;
    options.losses = watch_;
    TcpPath path(std::move(client_), TcpPath::Role::Sender, "test", options);
    path.look_after(steady_now());
    EXPECT_EQ(control_of(same.get()), "bbr");
    // From the start on later paths of this link, and of no other.
    for (const auto& [link, expected] : {std::pair{kLink, "bbr"}, {kLink + 1, "cubic"}}) {
        client_ = tcp_socket();
        ASSERT_TRUE(take(client_, "bbr"));
        EXPECT_EQ(after_connecting(Congestion("auto", link)), expected);
    }
}

TEST_F(OnABbrHost, LossChangesNothingThatWasChosen) {
    ASSERT_EQ(after_connecting(Congestion("cubic")), "cubic");
    lose_packets();
    watch_.look(client_.get());
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
