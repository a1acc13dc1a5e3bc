// SPDX-License-Identifier: Apache-2.0
// Helper threads: connections go on while NCCL does not call, and nothing is lost when both do.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <string>

#include "plugin/core/io_threads.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

std::size_t helper_threads() {
    std::size_t count = 0;
    DIR* directory = opendir("/proc/self/task");
    while (const dirent* entry = readdir(directory)) {
        std::ifstream name(std::string("/proc/self/task/") + entry->d_name + "/comm");
        std::string text;
        count += std::getline(name, text) && text == "deft-io" ? 1 : 0;
    }
    closedir(directory);
    return count;
}

template <class Condition>
bool wait_for(Condition&& condition) {
    const Nanos deadline = steady_now() + kPatience;
    while (!condition()) {
        if (steady_now() > deadline) {
            return false;
        }
        ::sched_yield();
    }
    return true;
}

struct Helped : TcpPair {
    Helped(std::size_t links, std::size_t threads) : TcpPair(links) {
        EXPECT_TRUE(establish());
        EXPECT_TRUE(help(*sender, threads));
        EXPECT_TRUE(help(*receiver, threads));
    }
    ~Helped() {
        unhelp(*sender);
        unhelp(*receiver);
    }
    Request* isend(const std::vector<std::byte>& data) {
        const Call call(*sender);
        return call ? sender->isend(data.data(), data.size(), steady_now()) : nullptr;
    }
    Request* irecv(std::vector<std::byte>& buffer) {
        const Call call(*receiver);
        return call ? receiver->irecv(buffer.data(), buffer.size(), false, steady_now()) : nullptr;
    }
    template <class End>
    static bool idle(End& end) {
        const Call call(end);
        return call && !end.busy();
    }
    template <class End>
    static bool done(End& end, Request* request) {
        const Call call(end);
        return call && end.test(request, steady_now(), nullptr);
    }
};

TEST(IoThreads, GoOnWhileNobodyCalls) {
    for (const std::size_t links : {1U, 2U}) {
        Helped pair(links, 2);
        const std::vector<std::byte> data = bytes_of(20'000'000, 3);
        std::vector<std::byte> buffer(data.size());
        Request* receive = nullptr;
        Request* send = nullptr;
        ASSERT_TRUE(wait_for([&] { return (receive = pair.irecv(buffer)) != nullptr; }));
        ASSERT_TRUE(wait_for([&] { return (send = pair.isend(data)) != nullptr; }));
        // Looks, but drives nothing: far more bytes than the kernel takes come through.
        EXPECT_TRUE(wait_for([&] { return Helped::idle(*pair.receiver); }));
        EXPECT_TRUE(wait_for([&] { return Helped::idle(*pair.sender); }));
        EXPECT_EQ(buffer, data);
        EXPECT_TRUE(wait_for([&] { return Helped::done(*pair.receiver, receive); }));
        EXPECT_TRUE(wait_for([&] { return Helped::done(*pair.sender, send); }));
    }
}

TEST(IoThreads, ShareTheWorkWithTheCaller) {
    constexpr std::size_t kMessages = 600;
    constexpr std::size_t kDepth = 4;
    Helped pair(2, 2);
    std::vector<std::vector<std::byte>> data;
    std::vector<std::vector<std::byte>> buffers(kDepth);
    for (std::size_t i = 0; i < kDepth; ++i) {
        data.push_back(bytes_of(1 + i * 90'001, static_cast<unsigned>(i)));
        buffers[i].resize(data[i].size());
    }
    std::vector<Request*> sends(kDepth);
    std::vector<Request*> receives(kDepth);
    std::size_t sent = 0;
    std::size_t posted = 0;
    std::size_t gone = 0;
    std::size_t came = 0;
    const Nanos deadline = steady_now() + 2 * kPatience;
    while (came < kMessages || gone < kMessages) {
        ASSERT_LT(steady_now(), deadline) << came << " of " << kMessages;
        if (posted < kMessages && posted < came + kDepth) {
            receives[posted % kDepth] = pair.irecv(buffers[posted % kDepth]);
            posted += receives[posted % kDepth] != nullptr ? 1 : 0;
        }
        if (sent < kMessages && sent < gone + kDepth) {
            sends[sent % kDepth] = pair.isend(data[sent % kDepth]);
            sent += sends[sent % kDepth] != nullptr ? 1 : 0;
        }
        if (gone < sent && Helped::done(*pair.sender, sends[gone % kDepth])) {
            ++gone;
        }
        if (came < posted && Helped::done(*pair.receiver, receives[came % kDepth])) {
            ASSERT_EQ(buffers[came % kDepth], data[came % kDepth]) << came;
            std::fill(buffers[came % kDepth].begin(), buffers[came % kDepth].end(), std::byte{0});
            ++came;
        }
    }
}

TEST(IoThreads, EndWithTheirLastConnection) {
    {
        Helped one(1, 2);
        Helped two(1, 2);
        EXPECT_TRUE(wait_for([] { return helper_threads() == 2; }));
    }
    EXPECT_TRUE(wait_for([] { return helper_threads() == 0; }));
    Helped again(1, 1);
    EXPECT_TRUE(wait_for([] { return helper_threads() == 1; }));
}

TEST(Turn, IsLeftToTheOneWhoWasRefused) {
    Turn turn;
    ASSERT_TRUE(turn.take_spare());
    EXPECT_FALSE(turn.take());
    EXPECT_TRUE(turn.wanted());
    turn.give();
    EXPECT_TRUE(turn.take());
    EXPECT_FALSE(turn.wanted());
    EXPECT_FALSE(turn.take_spare());
}

}  // namespace
}  // namespace deft::net::testing
