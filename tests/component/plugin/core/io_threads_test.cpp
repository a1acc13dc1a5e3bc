// SPDX-License-Identifier: Apache-2.0
// Helper threads: connections go on while NCCL does not call, and nothing is lost when both do.
#include <gtest/gtest.h>

#include "plugin/core/io_threads.h"
#include "plugin/core/progress_thread.h"
#include "plugin/core/scheduler.h"
#include "tests/component/plugin/process_threads.h"
#include "tests/component/plugin/relayed_pair.h"

namespace deft::net::testing {
namespace {

// Both ends of an established pair are driven by helpers as well, until this goes.
struct Helped {
    Helped(TcpPair& pair, std::size_t threads) : sender(pair.sender), receiver(pair.receiver) {
        EXPECT_TRUE(help(*sender, threads));
        EXPECT_TRUE(help(*receiver, threads));
    }
    ~Helped() {
        stop_progress(*sender);
        stop_progress(*receiver);
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

    const std::unique_ptr<Sender>& sender;
    const std::unique_ptr<Receiver>& receiver;
};

TEST(IoThreads, GoOnWhileNobodyCalls) {
    for (const std::size_t links : {1U, 2U}) {
        TcpPair pair(links);
        ASSERT_TRUE(pair.establish());
        Helped helped(pair, 2);
        const std::vector<std::byte> data = bytes_of(20'000'000, 3);
        std::vector<std::byte> buffer(data.size());
        Request* receive = nullptr;
        Request* send = nullptr;
        ASSERT_TRUE(wait_for([&] { return (receive = helped.irecv(buffer)) != nullptr; }));
        ASSERT_TRUE(wait_for([&] { return (send = helped.isend(data)) != nullptr; }));
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
    TcpPair pair(2);
    ASSERT_TRUE(pair.establish());
    Helped helped(pair, 2);
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
            receives[posted % kDepth] = helped.irecv(buffers[posted % kDepth]);
            posted += receives[posted % kDepth] != nullptr ? 1 : 0;
        }
        if (sent < kMessages && sent < gone + kDepth) {
            sends[sent % kDepth] = helped.isend(data[sent % kDepth]);
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

// The receiver has everything, its user does not call again, and the path that says so dies.
TEST(IoThreads, TellAgainWhatADeadPathWasToTell) {
    RelayedPair scene(2, 1);
    ASSERT_TRUE(scene.establish());
    TcpPair& pair = scene.pair;
    Relay& relay = *scene.relay[0];
    enum class Relayed { Nothing, ToReceiver, All };
    Relayed relayed = Relayed::Nothing;
    relay.hold = [&](bool to_receiver) {
        return relayed == Relayed::Nothing || (relayed == Relayed::ToReceiver && !to_receiver);
    };
    relay.cut = [](bool to_receiver) { return !to_receiver; };
    Helped helped(pair, 2);
    const std::vector<std::byte> data = bytes_of(2 * kMinChunk, 5);  // a chunk for each path
    std::vector<std::byte> buffer(data.size());
    Request* receive = nullptr;
    Request* send = nullptr;
    ASSERT_TRUE(wait_for([&] { return (receive = helped.irecv(buffer)) != nullptr; }));
    ASSERT_TRUE(wait_for([&] { return (send = helped.isend(data)) != nullptr; }));
    // The other path's chunk has come, and been acknowledged; then this one's comes.
    ASSERT_TRUE(wait_for([&] {
        const Call call(*pair.sender);
        return call && pair.sender->moved() >= 3;
    }));
    relayed = Relayed::ToReceiver;
    ASSERT_TRUE(wait_for([&] {
        scene.step();
        return Helped::done(*pair.receiver, receive);
    }));
    EXPECT_EQ(buffer, data);
    relayed = Relayed::All;
    EXPECT_TRUE(wait_for([&] {
        scene.step();
        return Helped::done(*pair.sender, send);
    }));
    EXPECT_GE(relay.cuts, 1U);
}

TEST(IoThreads, EndWithTheirLastConnection) {
    TcpPair first(1);
    TcpPair second(1);
    ASSERT_TRUE(first.establish());
    ASSERT_TRUE(second.establish());
    {
        Helped one(first, 2);
        Helped two(second, 2);
        EXPECT_TRUE(wait_for([] { return threads_named("deft-io") == 2; }));
    }
    EXPECT_TRUE(wait_for([] { return threads_named("deft-io") == 0; }));
    Helped again(first, 1);
    EXPECT_TRUE(wait_for([] { return threads_named("deft-io") == 1; }));
}

// Not analysed: GoogleTest's macros hide from clang what try_lock() has returned.
void leave_to_the_one_who_was_refused(EndpointLock& lock) DEFT_NO_THREAD_SAFETY_ANALYSIS {
    ASSERT_TRUE(lock.try_lock_spare());
    EXPECT_FALSE(lock.try_lock());
    EXPECT_TRUE(lock.wanted());
    lock.unlock_spare();
    EXPECT_TRUE(lock.try_lock());
    EXPECT_FALSE(lock.wanted());
    EXPECT_FALSE(lock.try_lock_spare());
}

TEST(EndpointLock, IsLeftToTheOneWhoWasRefused) {
    EndpointLock lock;
    leave_to_the_one_who_was_refused(lock);
}

}  // namespace
}  // namespace deft::net::testing
