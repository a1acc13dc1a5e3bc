// SPDX-License-Identifier: Apache-2.0
// Connections that NCCL has left alone, as the whole plugin has them: the peer still gets what it
// waits for.
#include "plugin/core/idle_progress.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "plugin/core/progress_thread.h"
#include "plugin/core/scheduler.h"
#include "tests/component/plugin/core/nccl_scene.h"

namespace deft::net::testing {
namespace {

// Its first round lasts until somebody has come.
class Slow final : public ConnectionEnd {
public:
    void progress(Nanos /*now*/) override {
        inside = true;
        const Nanos limit = steady_now() + 10 * kSecond;
        while (!come && steady_now() < limit) {
            ::usleep(100);
        }
        if (!come) {
            in_vain = true;
        }
    }
    bool busy() const override { return false; }
    bool held() const override { return false; }
    std::uint64_t moved() const override { return 0; }

    std::atomic<bool> inside{false};
    std::atomic<bool> come{false};
    std::atomic<bool> in_vain{false};
};

// NCCL's thread hands a connection over while the idle thread is busy with others.
TEST(IdleProgress, TakesAConnectionWithoutWaitingForARound) {
    Slow first;
    Slow second;
    second.come = true;
    ASSERT_TRUE(progress_when_idle(first));
    ASSERT_TRUE(wait_for([&] { return first.inside.load(); }));
    EXPECT_TRUE(progress_when_idle(second));
    first.come = true;
    EXPECT_TRUE(wait_for([&] { return second.inside.load(); }));
    stop_progress(first);
    stop_progress(second);
    EXPECT_FALSE(first.in_vain);
    EXPECT_TRUE(wait_for([] { return threads_named("deft-care") == 0; }));
}

// One that goes before its first round, perhaps; the thread ends with it, and starts for the next.
TEST(IdleProgress, LetsGoOfAConnectionThatHasJustCome) {
    Slow first;
    Slow second;
    Slow third;
    second.come = third.come = true;
    ASSERT_TRUE(progress_when_idle(first));
    ASSERT_TRUE(wait_for([&] { return first.inside.load(); }));
    ASSERT_TRUE(progress_when_idle(second));
    first.come = true;
    stop_progress(second);
    stop_progress(first);
    EXPECT_TRUE(wait_for([] { return threads_named("deft-care") == 0; }));
    ASSERT_TRUE(progress_when_idle(third));
    EXPECT_TRUE(wait_for([&] { return third.inside.load(); }));
    stop_progress(third);
    EXPECT_TRUE(wait_for([] { return threads_named("deft-care") == 0; }));
}

// The receiver has everything and is not called again; the path that says so dies.
TEST(IdleProgress, TellsAgainWhatADeadPathWasToTell) {
    Scene scene(2, 1);
    Relay& relay = *scene.relay[0];
    bool to_receiver_only = false;
    bool all = false;
    relay.hold = [&](bool to_receiver) { return !all && !(to_receiver_only && to_receiver); };
    relay.cut = [](bool to_receiver) { return !to_receiver; };
    std::vector<std::byte> data = bytes_of(2 * kMinChunk, 5);  // a chunk for each path
    std::vector<std::byte> buffer(data.size());
    void* const receive = scene.irecv(buffer);
    void* const send = scene.isend(data);
    // The other path's chunk has come, and been acknowledged; then this one's comes.
    ASSERT_TRUE(wait_for([&] {
        EXPECT_FALSE(scene.done(receive));
        EXPECT_FALSE(scene.done(send));
        return scene.moved_at_sender() >= 3;
    }));
    to_receiver_only = true;
    ASSERT_TRUE(wait_for([&] { return scene.done(receive); }));
    EXPECT_EQ(buffer, data);
    std::fill(buffer.begin(), buffer.end(), std::byte{0});  // NCCL's again
    all = true;
    EXPECT_TRUE(wait_for([&] { return scene.done(send); }));
    EXPECT_GE(relay.cuts, 1U);
    EXPECT_EQ(buffer, std::vector<std::byte>(buffer.size()));
}

// The same with the only path there is: the receiver has to let a new one in.
TEST(IdleProgress, LetsTheOnlyPathInAgain) {
    Scene scene(1, 1);
    Relay& relay = *scene.relay[0];
    bool all = false;
    relay.hold = [&](bool to_receiver) { return !all && !to_receiver; };
    std::vector<std::byte> data = bytes_of(300'000, 6);
    std::vector<std::byte> buffer(data.size());
    void* const send = scene.isend(data);
    void* const receive = scene.irecv(buffer);
    // The credit comes through, the acknowledgement does not.
    all = true;
    ASSERT_TRUE(wait_for([&] {
        EXPECT_FALSE(scene.done(send));
        return scene.moved_at_sender() >= 1;
    }));
    all = false;
    relay.cut = [](bool to_receiver) { return !to_receiver; };
    ASSERT_TRUE(wait_for([&] { return scene.done(receive); }));
    EXPECT_EQ(buffer, data);
    all = true;
    ASSERT_TRUE(wait_for([&] {
        EXPECT_FALSE(scene.done(send));
        return relay.cuts == 1;
    }));
    relay.cut = nullptr;
    EXPECT_TRUE(wait_for([&] { return scene.done(send); }));
    EXPECT_GE(relay.connections, 2U);
}

// On a single path a small message is done before it has come; then that path dies with it, and the
// sender is not called again.
TEST(IdleProgress, SendsAgainWhatADeadPathHad) {
    Scene scene(1, 1);
    Relay& relay = *scene.relay[0];
    relay.hold = [](bool) { return true; };
    std::vector<std::byte> data = bytes_of(1000, 7);
    std::vector<std::byte> buffer(data.size());
    void* const send = scene.isend(data);
    ASSERT_TRUE(wait_for([&] { return scene.done(send); }));
    relay.hold = nullptr;
    relay.cut = [&](bool to_receiver) { return to_receiver && relay.cuts == 0; };
    void* const receive = scene.irecv(buffer);
    EXPECT_TRUE(wait_for([&] { return scene.done(receive); }));
    EXPECT_EQ(buffer, data);
    EXPECT_EQ(relay.cuts, 1U);
}

// The same, and NCCL closes the connection in an outage in which no path comes about.
TEST(IdleProgress, BringsWhatAClosedConnectionOwes) {
    Scene scene(1, 1);
    Relay& relay = *scene.relay[0];
    relay.hold = [](bool) { return true; };
    std::vector<std::byte> data = bytes_of(1000, 7);
    std::vector<std::byte> buffer(data.size());
    void* const send = scene.isend(data);
    ASSERT_TRUE(wait_for([&] { return scene.done(send); }));
    relay.hold = nullptr;
    relay.cut = [](bool to_receiver) { return to_receiver; };
    void* const receive = scene.irecv(buffer);
    ASSERT_TRUE(wait_for([&] {
        EXPECT_FALSE(scene.done(receive));
        return relay.cuts >= 2;
    }));
    scene.close_sender();
    std::fill(data.begin(), data.end(), std::byte{0});  // NCCL's again
    const std::uint64_t cuts = relay.cuts;
    ASSERT_TRUE(wait_for([&] {
        EXPECT_FALSE(scene.done(receive));
        return relay.cuts >= cuts + 2;
    }));
    relay.cut = nullptr;
    EXPECT_TRUE(wait_for([&] { return scene.done(receive); }));
    EXPECT_EQ(buffer, bytes_of(1000, 7));
}

TEST(IdleProgress, ThereIsOneWhileThereAreConnections) {
    Scene scene(1, 0);
    EXPECT_TRUE(wait_for([] { return threads_named("deft-care") == 1; }));
    std::vector<std::byte> data = bytes_of(100'000, 8);
    std::vector<std::byte> buffer(data.size());
    void* const receive = scene.irecv(buffer);
    void* const send = scene.isend(data);
    bool sent = false;
    EXPECT_TRUE(wait_for([&] {
        if (!sent) {
            sent = scene.done(send);
        }
        return scene.done(receive);
    }));
    EXPECT_TRUE(wait_for([&] { return sent || scene.done(send); }));
    EXPECT_EQ(buffer, data);
    EXPECT_EQ(threads_named("deft-care"), 1U);
}

// Counts who drives it.
struct Driven final : ConnectionEnd {
    std::atomic<int> times{0};
    std::atomic<bool> waits{false};  // the idle thread stays inside
    bool requested = false;

    void progress(Nanos) override {
        ++times;
        while (waits) {
            ::sched_yield();
        }
    }
    bool busy() const override { return requested; }
    bool held() const override { return requested; }
    std::uint64_t moved() const override { return 0; }
};

TEST(IdleProgress, LeavesToNcclWhatItHasARequestOf) {
    Driven held;
    held.requested = true;
    Driven free;
    ASSERT_TRUE(progress_when_idle(held));
    ASSERT_TRUE(progress_when_idle(free));
    EXPECT_TRUE(wait_for([&] { return free.times >= 3; }));
    stop_progress(held);
    stop_progress(free);
    EXPECT_EQ(held.times, 0);
    const int times = free.times;
    EXPECT_EQ(held.thread, nullptr);
    Driven other;
    ASSERT_TRUE(progress_when_idle(other));
    EXPECT_TRUE(wait_for([&] { return other.times >= 1; }));
    stop_progress(other);
    EXPECT_EQ(free.times, times) << "driven after it was let go";
}

// Forked while the idle thread is inside, which in the child it stays for ever. On what is made in
// the child, calls keep each other out as anywhere.
TEST(IdleProgress, AForkedChildDoesNotWaitForIt) {
    Driven end;
    end.waits = true;
    ASSERT_TRUE(progress_when_idle(end));
    ASSERT_TRUE(wait_for([&] { return end.times == 1; }));
    {
        const Call call(end);
        EXPECT_FALSE(call);
    }
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        bool good = false;
        {
            const Call call(end);
            good = static_cast<bool>(call);
        }
        stop_progress(end);
        Driven fresh;
        good = good && !progress_when_idle(fresh);
        const Call call(fresh);
        const Call another(fresh);
        _exit(good && call && !another ? 0 : 1);
    }
    int status = -1;
    const bool ended = wait_for([&] { return waitpid(child, &status, WNOHANG) == child; });
    end.waits = false;
    if (!ended) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    EXPECT_TRUE(ended);
    EXPECT_EQ(status, 0);
    stop_progress(end);
}

// What a forked child does with connections is no concern of theirs.
TEST(IdleProgress, AForkedChildClosesNothing) {
    Scene scene(2, 0);
    std::vector<std::byte> data = bytes_of(100'000, 9);
    std::vector<std::byte> buffer(data.size());
    void* const handle = scene.register_for_receiver(buffer);
    void* const receive = scene.irecv(buffer);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        scene.close_inherited(handle);
        _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    EXPECT_TRUE(wait_for([&] { return waitpid(child, &status, WNOHANG) == child; }));
    EXPECT_EQ(status, 0);
    void* const send = scene.isend(data);
    bool sent = false;
    bool received = false;
    EXPECT_TRUE(wait_for([&] {
        if (!sent) {
            sent = scene.done(send);
        }
        if (!received) {
            received = scene.done(receive);
        }
        return sent && received;
    }));
    EXPECT_EQ(buffer, data);
    scene.deregister(handle);
}

// Not analysed: GoogleTest's macros hide from clang what try_lock() has returned.
void know_if_nccl_was_there(EndpointLock& lock) DEFT_NO_THREAD_SAFETY_ANALYSIS {
    EXPECT_TRUE(lock.left_alone());
    ASSERT_TRUE(lock.try_lock());
    EXPECT_FALSE(lock.left_alone()) << "it is there";
    lock.unlock();
    EXPECT_FALSE(lock.left_alone()) << "it was there";
    EXPECT_TRUE(lock.left_alone());
    ASSERT_TRUE(lock.try_lock_spare());
    EXPECT_FALSE(lock.left_alone());
    lock.unlock_spare();
    EXPECT_TRUE(lock.left_alone());
    ASSERT_TRUE(lock.try_lock());
    lock.unlock();
    ASSERT_TRUE(lock.try_lock_spare()) << "having called does not keep others out";
}

TEST(EndpointLock, KnowsIfNcclWasThere) {
    EndpointLock lock;
    know_if_nccl_was_there(lock);
}

}  // namespace
}  // namespace deft::net::testing
