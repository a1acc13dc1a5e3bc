// SPDX-License-Identifier: Apache-2.0
// Connections with paths over TCP and over UCX, whose TCP transport on loopback is all that this
// needs. Both ends are in one process, driven by one thread, as NCCL does it.
#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/component/plugin/ucx/loopback.h"
#include "tests/component/plugin/verbs/mixed_pair.h"
#include "tests/sanitizers.h"

namespace deft::net::testing {
namespace {

Ports ucx_over_loopback(std::size_t which) {
    const UcxLoopback& loopback = UcxLoopback::process();
    EXPECT_EQ(loopback.problem, "");
    const UcxPorts& ports = loopback.ports[which];
    EXPECT_EQ(ports.size(), 1U);
    return {ports.begin(), ports.end()};
}

std::uint64_t by_ucx() {
    return sent_by("lo", "ucx");
}

// Connections of this process on 127.0.0.1, which UCX has and the links of deft's have not.
std::vector<int> ucx_sockets() {
    std::vector<int> found;
    DIR* const folder = ::opendir("/proc/self/fd");
    while (const dirent* entry = ::readdir(folder)) {
        const int fd = std::atoi(entry->d_name);
        sockaddr_in own{};
        sockaddr_in peer{};
        socklen_t own_size = sizeof(own);
        socklen_t peer_size = sizeof(peer);
        if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
            ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
            own.sin_family == AF_INET && own.sin_addr.s_addr == htonl(INADDR_LOOPBACK)) {
            found.push_back(fd);
        }
    }
    ::closedir(folder);
    return found;
}

class UcxConnection : public ::testing::Test {
protected:
    Ports near_ = ucx_over_loopback(0);
    Ports far_ = ucx_over_loopback(1);
};

// UCX itself makes a line of its log of it, and goes on with shared memory.
TEST_F(UcxConnection, ADeviceThatUcxHasNotIsRefused) {
    std::string problem;
    const deft_ucx_module_t* const module = process_ucx_module(problem);
    ASSERT_NE(module, nullptr) << problem;
    EXPECT_EQ(open_ucx_ports(*module, "nosuch0", {}, {}, problem).size(), 0U);
    EXPECT_NE(problem.find("nosuch0: UCX finds no network device: none of this name"),
              std::string::npos)
        << problem;
    // Kept, as every device is.
    static const UcxPorts& known =
        *new UcxPorts(open_ucx_ports(*module, "nosuch0,lo", {}, {}, problem));
    EXPECT_EQ(known.size(), 1U);
    std::array<char, 256> devices{};
    EXPECT_GT(near_.size(), 0U);
    const auto& port = static_cast<const UcxPort&>(*near_.front());
    EXPECT_GT(module->devices(port.device->get(), devices.data(), devices.size()), 0U);
    EXPECT_STREQ(devices.data(), "tcp/lo\n");
}

TEST_F(UcxConnection, HasPathsOverBothKinds) {
    MixedPair pair(1, near_, far_);
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.sender->paths(), 2U);
    EXPECT_EQ(pair.up(), 2U);
    const std::uint64_t before = by_ucx();
    ASSERT_TRUE(pair.run(200));
    EXPECT_GT(by_ucx(), before);
}

TEST_F(UcxConnection, ASideWithoutUcxGetsTcp) {
    for (const bool sender : {true, false}) {
        MixedPair pair(1, sender ? near_ : Ports(), sender ? Ports() : far_);
        ASSERT_TRUE(pair.establish());
        EXPECT_EQ(pair.sender->paths(), 1U);
        ASSERT_TRUE(pair.run(20));
    }
}

TEST_F(UcxConnection, UnlikeNumbersOfDevicesAllHavePaths) {
    Ports two = near_;
    two.push_back(ucx_over_loopback(2).front());
    MixedPair pair(1, two, far_);
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.sender->paths(), 3U);
    ASSERT_TRUE(pair.run(50));
}

// Every byte is compared when it has come, and again before its buffer is used for something else;
// what was sent is overwritten once its send is done.
TEST_F(UcxConnection, ALostPathLosesAndChangesNothing) {
    MixedPair pair(1, near_, far_);
    ASSERT_TRUE(pair.establish());
    for (int round = 0; round < 6; ++round) {
        const std::uint64_t before = by_ucx();
        std::size_t cut = 0;
        ASSERT_TRUE(pair.run(60, [&](std::size_t message) {
            if (message == 20U + static_cast<std::size_t>(round)) {
                for (const int fd : ucx_sockets()) {
                    cut += ::shutdown(fd, SHUT_RDWR) == 0 ? 1 : 0;
                }
            }
        }));
        EXPECT_GT(cut, 0U) << "nothing was cut";
        EXPECT_GT(by_ucx(), before) << "it was not used";
        const Nanos deadline = steady_now() + kPatience;
        while (pair.up() < 2 && steady_now() < deadline) {
            ASSERT_TRUE(pair.run(5));
        }
        ASSERT_EQ(pair.up(), 2U) << "it does not come back";
    }
}

// NCCL closes with messages on their way, and its memory is the job's again.
TEST_F(UcxConnection, MemoryIsLeftAloneOnceTheConnectionIsClosed) {
    for (const bool sender_first : {true, false}) {
        MixedPair pair(1, near_, far_);
        ASSERT_TRUE(pair.establish());
        std::vector<std::byte> from(MixedPair::kLargest, std::byte{7});
        std::vector<std::byte> to(MixedPair::kLargest);
        std::string problem;
        Region source(Memory{from.data(), from.size()}, pair.sender->domains(), problem);
        Region target(Memory{to.data(), to.size()}, pair.receiver->domains(), problem);
        Request* in = pair.receiver->irecv(to.data(), to.size(), false, steady_now(), &target);
        Request* out = nullptr;
        while (out == nullptr) {
            out = pair.sender->isend(from.data(), from.size(), steady_now(), &source);
        }
        ASSERT_NE(in, nullptr);
        for (int i = 0; i < 50; ++i) {
            pair.sender->progress(steady_now());
            pair.receiver->progress(steady_now());
        }
        if (sender_first) {
            pair.sender->close(0);
            std::fill(from.begin(), from.end(), std::byte{9});
        } else {
            pair.receiver->close(0);
            std::fill(to.begin(), to.end(), std::byte{9});
            for (int i = 0; i < 2000; ++i) {
                pair.sender->progress(steady_now());
            }
            EXPECT_EQ(std::count(to.begin(), to.end(), std::byte{9}),
                      static_cast<std::ptrdiff_t>(to.size()));
        }
    }
}

// Sends for as long as the process lives, and makes and ends paths beside that, while another
// thread leaves main() as jobs do that leave their communicators to exit().
[[noreturn]] void exit_in_use(const Ports& near, const Ports& far) {
    for (int i = 0; i < 2; ++i) {
        std::thread([&near, &far, i] {
            for (;;) {
                MixedPair pair(1, near, far);
                (void)(pair.establish() && pair.run(i == 0 ? SIZE_MAX : 20));
            }
        }).detach();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::exit(0);
}

TEST_F(UcxConnection, AProcessMayExitWhileItIsUsed) {
#if defined(TEST_ADDRESS_SANITIZER)
    GTEST_SKIP() << "what such an exit leaves would be called leaked";
#endif
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(exit_in_use(near_, far_), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace deft::net::testing
