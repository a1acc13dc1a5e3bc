// SPDX-License-Identifier: Apache-2.0
// Real sockets that are cut under load, processes' ends that go away, closes in every state.
#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <deque>
#include <random>
#include <set>

#include "base/link_stats.h"
#include "plugin/core/path.h"
#include "tests/component/plugin/tcp_pair.h"

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

// Messages of many sizes over one connection, several in flight.
class Load {
public:
    static constexpr std::size_t kMessages = 400;

    explicit Load(TcpPair& pair) : pair_(pair) {}

    bool over() const { return received_ == kMessages && sends_.empty(); }
    std::size_t received() const { return received_; }

    void step() {
        post();
        if (!sends_.empty() && pair_.sender->test(sends_.front().request, steady_now(), nullptr)) {
            std::fill(sends_.front().data.begin(), sends_.front().data.end(), std::byte{0xEE});
            sends_.pop_front();
        }
        std::size_t size = 0;
        if (receives_.empty() ||
            !pair_.receiver->test(receives_.front().request, steady_now(), &size)) {
            return;
        }
        ASSERT_EQ(size, size_of(received_));
        const std::vector<std::byte> expected = bytes_of(size, static_cast<unsigned>(received_));
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), receives_.front().data.begin()))
            << "message " << received_;
        receives_.pop_front();
        ++received_;
    }

private:
    static constexpr std::size_t kDepth = 6;
    static constexpr std::size_t kLargest = 600000;
    struct Flight {
        Request* request;
        std::vector<std::byte> data;
    };

    static std::size_t size_of(std::size_t message) {
        return std::mt19937(static_cast<unsigned>(message))() % kLargest;
    }

    void post() {
        if (posted_ < kMessages && receives_.size() < kDepth) {
            std::vector<std::byte> buffer(kLargest);
            if (Request* request =
                    pair_.receiver->irecv(buffer.data(), buffer.size(), false, steady_now())) {
                receives_.push_back({request, std::move(buffer)});
                ++posted_;
            }
        }
        if (sent_ < kMessages && sends_.size() < kDepth) {
            std::vector<std::byte> data = bytes_of(size_of(sent_), static_cast<unsigned>(sent_));
            if (Request* request = pair_.sender->isend(data.data(), data.size(), steady_now())) {
                sends_.push_back({request, std::move(data)});
                ++sent_;
            }
        }
    }

    TcpPair& pair_;
    std::deque<Flight> sends_;
    std::deque<Flight> receives_;
    std::size_t sent_ = 0;
    std::size_t posted_ = 0;
    std::size_t received_ = 0;
};

TEST(TcpFailover, ConnectionsCutUnderLoadLoseNothing) {
    TcpPair pair(3);
    ASSERT_TRUE(pair.establish());
    ASSERT_EQ(pair.sender->paths(), 3U);
    Load load(pair);
    std::size_t cuts = 0;
    std::mt19937 random(7);
    const Nanos deadline = steady_now() + 2 * kPatience;
    while (!load.over()) {
        ASSERT_LT(steady_now(), deadline) << load.received() << " of " << Load::kMessages;
        ASSERT_FALSE(pair.sender->failure()) << pair.sender->failure().text;
        ASSERT_FALSE(pair.receiver->failure()) << pair.receiver->failure().text;
        if (load.received() > cuts * 10 + 10 && cuts < 30) {
            const std::vector<int> fds = connections_on(2 + static_cast<int>(cuts % 3));
            if (!fds.empty()) {
                shutdown(fds[random() % fds.size()], SHUT_RDWR);
            }
            ++cuts;
        }
        ASSERT_NO_FATAL_FAILURE(load.step());
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
