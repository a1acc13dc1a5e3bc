// SPDX-License-Identifier: Apache-2.0
// Real sockets that are cut under load, processes' ends that go away, closes in every state.
#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <deque>
#include <random>
#include <set>

#include "plugin/core/path.h"
#include "tests/component/plugin/tcp_pair.h"
#include "topology/link_stats.h"

namespace deft::net::testing {
namespace {

// Descriptors of this process's established TCP connections whose local address is 127.0.0.`host`.
std::vector<int> connections_on(int host) {
    std::vector<int> found;
    DIR* directory = opendir("/proc/self/fd");
    while (const dirent* entry = readdir(directory)) {
        const int fd = std::atoi(entry->d_name);
        sockaddr_in peer{};
        socklen_t length = sizeof(peer);
        if (fd > 2 && getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
            peer.sin_family == AF_INET &&
            (ntohl(peer.sin_addr.s_addr) & 0xff) == static_cast<unsigned>(host)) {
            found.push_back(fd);
        }
    }
    closedir(directory);
    return found;
}

TEST(TcpSockets, AcknowledgementsGoAheadOfBulkData) {
    TcpPair pair(1);
    ASSERT_TRUE(pair.establish());
    std::multiset<int> priorities;
    for (const int fd : connections_on(2)) {
        int priority = -1;
        socklen_t length = sizeof(priority);
        ASSERT_EQ(getsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, &length), 0);
        priorities.insert(priority);
    }
    EXPECT_EQ(priorities, (std::multiset<int>{0, 6})) << "the sender's socket, the receiver's";
}

TEST(TcpFailover, ConnectionsCutUnderLoadLoseNothing) {
    TcpPair pair(3);
    ASSERT_TRUE(pair.establish());
    ASSERT_EQ(pair.sender->paths(), 3U);
    constexpr std::size_t kMessages = 400;
    constexpr std::size_t kDepth = 6;
    struct Send {
        Request* request;
        std::vector<std::byte> data;
    };
    std::deque<Send> sends;
    std::deque<std::pair<Request*, std::vector<std::byte>>> receives;
    std::size_t sent = 0;
    std::size_t posted = 0;
    std::size_t received = 0;
    std::size_t cuts = 0;
    std::mt19937 random(7);
    const auto size_of = [](std::size_t message) {
        return std::mt19937(static_cast<unsigned>(message))() % 600000;
    };
    const Nanos deadline = steady_now() + 2 * kPatience;
    while (received < kMessages || !sends.empty()) {
        ASSERT_LT(steady_now(), deadline) << received << " of " << kMessages;
        ASSERT_FALSE(pair.sender->failure()) << pair.sender->failure().text;
        ASSERT_FALSE(pair.receiver->failure()) << pair.receiver->failure().text;
        if (received > cuts * 10 + 10 && cuts < 30) {
            const std::vector<int> fds = connections_on(2 + static_cast<int>(cuts % 3));
            if (!fds.empty()) {
                shutdown(fds[random() % fds.size()], SHUT_RDWR);
            }
            ++cuts;
        }
        if (posted < kMessages && receives.size() < kDepth) {
            std::vector<std::byte> buffer(600000);
            if (Request* request =
                    pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now())) {
                receives.emplace_back(request, std::move(buffer));
                ++posted;
            }
        }
        if (sent < kMessages && sends.size() < kDepth) {
            std::vector<std::byte> data = bytes_of(size_of(sent), static_cast<unsigned>(sent));
            if (Request* request = pair.sender->isend(data.data(), data.size(), steady_now())) {
                sends.push_back({request, std::move(data)});
                ++sent;
            }
        }
        if (!sends.empty() && pair.sender->test(sends.front().request, steady_now(), nullptr)) {
            std::fill(sends.front().data.begin(), sends.front().data.end(), std::byte{0xEE});
            sends.pop_front();
        }
        std::size_t size = 0;
        if (!receives.empty() && pair.receiver->test(receives.front().first, steady_now(), &size)) {
            ASSERT_EQ(size, size_of(received));
            const std::vector<std::byte> expected = bytes_of(size, static_cast<unsigned>(received));
            ASSERT_TRUE(
                std::equal(expected.begin(), expected.end(), receives.front().second.begin()))
                << "message " << received;
            receives.pop_front();
            ++received;
        }
    }
    EXPECT_EQ(cuts, 30U);
    std::uint64_t transitions = 0;
    const LinkStats& stats = LinkStats::process();
    for (std::size_t i = 0; i < stats.size(); ++i) {
        transitions += stats[i].transitions.load();
    }
    EXPECT_GT(transitions, 60U);
}

TEST(TcpFailover, PeerEndGoneIsAnErrorOnTheOther) {
    for (const std::size_t links : {1, 2}) {
        TcpPair pair(links);
        ASSERT_TRUE(pair.establish());
        std::vector<std::byte> buffer(1 << 20);
        Request* receive = pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now());
        ASSERT_NE(receive, nullptr);
        pair.sender.reset();
        const Nanos deadline = steady_now() + kPatience;
        while (!pair.receiver->failure() && steady_now() < deadline) {
            ASSERT_FALSE(pair.receiver->test(receive, steady_now(), nullptr));
        }
        EXPECT_EQ(pair.receiver->failure().code, DEFT_NET_REMOTE_ERROR);

        TcpPair other(links);
        ASSERT_TRUE(other.establish());
        Request* send = other.sender->isend(buffer.data(), buffer.size(), steady_now());
        ASSERT_NE(send, nullptr);
        other.receiver.reset();
        other.listener.reset();
        while (!other.sender->failure() && steady_now() < deadline) {
            ASSERT_FALSE(other.sender->test(send, steady_now(), nullptr));
        }
        EXPECT_EQ(other.sender->failure().code, DEFT_NET_REMOTE_ERROR);
    }
}

TEST(TcpFailover, SmallMessagesSurviveAnImmediateClose) {
    for (const std::size_t links : {1, 2}) {
        TcpPair pair(links);
        ASSERT_TRUE(pair.establish());
        std::vector<std::vector<std::byte>> buffers(5, std::vector<std::byte>(1000));
        std::vector<Request*> receives;
        for (auto& buffer : buffers) {
            receives.push_back(
                pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now()));
        }
        const Nanos deadline = steady_now() + kPatience;
        for (unsigned i = 0; i < 5; ++i) {
            const std::vector<std::byte> data = bytes_of(1000, i);
            Request* send = pair.sender->isend(data.data(), data.size(), steady_now());
            ASSERT_NE(send, nullptr);
            while (!pair.sender->test(send, steady_now(), nullptr) && steady_now() < deadline) {
                pair.receiver->progress(steady_now());
            }
        }
        pair.sender->close(300 * kMillisecond);
        pair.sender.reset();
        for (unsigned i = 0; i < 5; ++i) {
            bool done = false;
            while (!done && steady_now() < deadline) {
                done = pair.receiver->test(receives[i], steady_now(), nullptr);
            }
            ASSERT_TRUE(done) << i;
            EXPECT_EQ(buffers[i], bytes_of(1000, i));
        }
    }
}

TEST(TcpFailover, CloseInEveryStateReturns) {
    std::vector<std::byte> data(4 << 20);
    for (int state = 0; state < 6; ++state) {
        TcpPair pair(2);
        if (state >= 1) {
            (void)pair.step();
        }
        if (state >= 2) {
            ASSERT_TRUE(pair.establish());
        }
        if (state == 3) {
            ASSERT_NE(pair.receiver->irecv(data.data(), data.size(), false, steady_now()), nullptr);
        }
        if (state >= 4) {  // half a message on its way
            std::vector<std::byte> buffer(data.size());
            ASSERT_NE(pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now()),
                      nullptr);
            Request* send = pair.sender->isend(data.data(), data.size(), steady_now());
            ASSERT_NE(send, nullptr);
            (void)pair.sender->test(send, steady_now(), nullptr);
            if (state == 5) {
                pair.receiver->close(300 * kMillisecond);
                pair.receiver.reset();
            }
            if (pair.receiver) {
                pair.receiver->progress(steady_now());
            }
            pair.sender->close(300 * kMillisecond);
            pair.sender.reset();
            if (pair.receiver) {
                pair.receiver->close(300 * kMillisecond);
                pair.receiver.reset();  // before the buffer goes
            }
        }
    }
    forget_attempts(steady_now(), true);
}

}  // namespace
}  // namespace deft::net::testing
