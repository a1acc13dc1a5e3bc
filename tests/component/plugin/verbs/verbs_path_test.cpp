// SPDX-License-Identifier: Apache-2.0
// A path over a queue pair, on the software verbs device.
#include <sys/ioctl.h>

#include <algorithm>
#include <array>

#include "tests/component/plugin/verbs/scene.h"

namespace deft::net::testing {
namespace {

using VerbsPathTest = Scene;

bool same_bytes(const std::byte* a, const std::byte* b, std::size_t bytes) {
    return std::memcmp(a, b, bytes) == 0;
}

// Memory while the device may be at it: what nobody must do, and these tests do on purpose.
[[gnu::noinline, gnu::no_sanitize("thread")]] std::byte seen(const End& end, std::size_t offset) {
    return *const_cast<const volatile std::byte*>(&end.memory[offset]);
}

TEST_F(VerbsPathTest, WritesWhereTheReceiverHasGranted) {
    connect();
    for (std::size_t i = 0; i < End::kBytes; ++i) {
        near.memory[i] = static_cast<std::byte>(i * 7 % 251);
    }
    const unsigned long before = violations();
    const std::size_t bytes = 600'001;
    ASSERT_EQ(write(chunk(5, 3, bytes), 100), Post::Ok);
    EXPECT_FALSE(near.path->drained());
    ASSERT_TRUE(eventually([&] { return poll() && near.told.acks == 1; }));
    ASSERT_TRUE(eventually([&] { return poll() && far.told.written.size() == 1; }));
    EXPECT_EQ(far.told.written[0].message, 5U);
    EXPECT_EQ(far.told.written[0].length, bytes);
    EXPECT_TRUE(same_bytes(near.memory.data() + 3, far.memory.data() + 100, bytes));
    EXPECT_EQ(far.memory[99], std::byte{0});
    EXPECT_EQ(far.memory[100 + bytes], std::byte{0});
    EXPECT_TRUE(near.path->drained());
    EXPECT_EQ(violations(), before);
}

TEST_F(VerbsPathTest, SmallChunksComeInTheirMessage) {
    connect();
    fill(near, 9);
    far.told.memory = far.memory.data();
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{8192}}) {
        Chunk small = chunk(bytes, 0, bytes);
        ASSERT_EQ(near.path->post(small), Post::Ok);
        std::memset(near.memory.data(), 1, 8192);  // it was copied
        ASSERT_TRUE(eventually([&] { return poll() && !far.told.carried.empty(); }));
        EXPECT_EQ(far.told.carried[0].length, bytes);
        EXPECT_EQ(std::count(far.memory.begin(), far.memory.end(), std::byte{9}),
                  static_cast<std::ptrdiff_t>(bytes));
        far.told.carried.clear();
        fill(near, 9);
        fill(far, 0);
    }
    ASSERT_TRUE(eventually([&] { return poll() && near.told.acks == 3; }));
}

TEST_F(VerbsPathTest, TheReceiversWordComesBack) {
    connect();
    Control state;
    state.received = 3;
    state.completed = 7;
    state.posted = 8;
    const Grant grant = far.grant(8, 64, 5000);
    ASSERT_EQ(far.path->send(state), Post::Ok);
    ASSERT_EQ(far.path->grant(grant), Post::Ok);
    ASSERT_TRUE(eventually([&] { return poll() && near.told.grants.size() == 1; }));
    ASSERT_EQ(near.told.controls.size(), 1U);
    EXPECT_EQ(near.told.controls[0].received, 3U);
    EXPECT_EQ(near.told.controls[0].completed, 7U);
    EXPECT_EQ(near.told.controls[0].posted, 8U);
    EXPECT_EQ(near.told.grants[0].message, 8U);
    EXPECT_EQ(near.told.grants[0].address, grant.address);
    EXPECT_EQ(near.told.grants[0].capacity, 5000U);
    EXPECT_EQ(near.told.grants[0].key, grant.key);
    ASSERT_EQ(near.path->send_bye(), Post::Ok);
    ASSERT_TRUE(eventually([&] { return poll() && far.told.closed == 1; }));
    EXPECT_EQ(near.told.acks, 0U) << "no chunks";
}

// A full queue is no error, and gives its room back: writes alone free none.
TEST_F(VerbsPathTest, AFullQueueComesBack) {
    connect();
    const unsigned long before = violations();
    std::uint64_t posted = 0;
    for (int round = 0; round < 3; ++round) {
        Post last = Post::Ok;
        while ((last = write(chunk(posted, 0, 4096), 0)) == Post::Ok) {
            ++posted;
        }
        ASSERT_EQ(last, Post::Again);
        ASSERT_TRUE(eventually([&] { return poll() && near.told.acks == posted; }));
    }
    EXPECT_EQ(posted, 3 * VerbsPath::kDepth);
    ASSERT_TRUE(eventually([&] { return poll() && far.told.written.size() == posted; }));
    EXPECT_EQ(violations(), before);
}

// The receiver's error state: what is on its way is refused, and what came before is told.
TEST_F(VerbsPathTest, AFenceKeepsLateWritesOut) {
    connect();
    fill(near, 9);
    ASSERT_EQ(write(chunk(0, 0, 1000), 0), Post::Ok);
    ASSERT_TRUE(eventually([&] { return near.path->poll(near.told, true), near.told.acks == 1; }));
    const long before = injected("late_write");
    Faults faults("late_write=1,late_write_ms=1000");
    ASSERT_EQ(write(chunk(1, 0, 1000), 4096), Post::Ok);
    ASSERT_TRUE(eventually([&] { return injected("late_write") == before + 1; }));
    ASSERT_TRUE(eventually([&] { return near.path->retract(); }));
    ASSERT_TRUE(eventually([&] { return far.path->fence(far.told); }));
    ASSERT_EQ(far.told.written.size(), 1U) << "what came before the fence";
    EXPECT_EQ(far.told.written[0].message, 0U);
    std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    EXPECT_EQ(std::count(far.memory.begin(), far.memory.end(), std::byte{9}), 1000);
    EXPECT_EQ(far.path->poll(far.told, true), Path::Poll::Idle);
    EXPECT_EQ(far.told.written.size(), 1U);
}

// And without it they land: the fault does what the fence is against.
TEST_F(VerbsPathTest, WithoutAFenceLateWritesLand) {
    connect();
    fill(near, 9);
    const long before = injected("late_write");
    Faults faults("late_write=1,late_write_ms=300");
    ASSERT_EQ(write(chunk(1, 0, 1), 4096), Post::Ok);
    ASSERT_TRUE(eventually([&] { return injected("late_write") == before + 1; }));
    ASSERT_TRUE(eventually([&] { return near.path->retract(); }));
    EXPECT_TRUE(eventually([&] { return seen(far, 4096) == std::byte{9}; }));
}

// Once retracted, every request has come back and none reads memory again.
TEST_F(VerbsPathTest, ARetractedPathHasNoRequestOpen) {
    connect();
    Faults faults("late_write=1,late_write_ms=500");
    for (std::uint64_t message = 0; message < 10; ++message) {
        ASSERT_EQ(write(chunk(message, 0, 100'000), 0), Post::Ok);
    }
    EXPECT_FALSE(near.path->drained());
    ASSERT_TRUE(eventually([&] { return near.path->retract(); }));
    EXPECT_TRUE(near.path->drained());
    EXPECT_EQ(near.path->post(chunk(10, 0, 8)), Post::Failed);
    const unsigned long before = violations();
    near.region.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    EXPECT_EQ(violations(), before);
}

TEST_F(VerbsPathTest, AccessThatIsRefusedIsTold) {
    connect();
    Chunk wrong = chunk(0, 0, 1000);
    Grant grant = far.grant(0, 0, 1000);
    grant.key ^= 0x100;
    wrong.grant = &grant;
    ASSERT_EQ(near.path->post(wrong), Post::Ok);
    ASSERT_TRUE(eventually([&] { return near.path->poll(near.told, true) == Path::Poll::Failed; }));
    EXPECT_EQ(near.path->loss(), Path::Loss::Protocol);
    EXPECT_NE(std::string(near.path->failure()).find("refused access"), std::string::npos)
        << near.path->failure();
    EXPECT_EQ(near.told.acks, 0U);
    // The far end hears of it by an event.
    ASSERT_TRUE(eventually([&] {
        far.path->look_after(steady_now());
        return far.path->poll(far.told, true) == Path::Poll::Failed;
    }));
}

TEST_F(VerbsPathTest, APeerThatDoesNotAnswerTimesOut) {
    connect();
    Faults faults("lose_acks=1");
    ASSERT_EQ(write(chunk(0, 0, 1000), 0), Post::Ok);
    EXPECT_GE(near.path->silence(), 0);
    ASSERT_TRUE(eventually([&] { return near.path->poll(near.told, true) == Path::Poll::Failed; }));
    EXPECT_EQ(near.path->loss(), Path::Loss::TimedOut) << near.path->failure();
    EXPECT_EQ(near.told.acks, 0U);
}

TEST_F(VerbsPathTest, TheLifeLineTellsOfADeadProcess) {
    connect();
    near.path->look_after(steady_now());
    EXPECT_NE(near.path->poll(near.told, true), Path::Poll::Failed);
    far.path.reset();
    ASSERT_TRUE(eventually([&] {
        near.path->look_after(steady_now());
        return near.path->poll(near.told, true) == Path::Poll::Failed;
    }));
    EXPECT_EQ(near.path->loss(), Path::Loss::Ended) << near.path->failure();
}

// ibv_modify_qp waits for the neighbour's address; whoever asks does not.
TEST_F(VerbsPathTest, NobodyWaitsForANeighbour) {
    near.make_pair(VerbsPath::Role::Sender);
    far.make_pair(VerbsPath::Role::Receiver);
    const long before = injected("modify_slow");
    Faults faults("modify_slow=100%,modify_slow_ms=2000");
    near.pair->connect(far.pair->own());
    // A fence of another path meanwhile.
    End other{"near"};
    other.make_pair(VerbsPath::Role::Receiver);
    ASSERT_TRUE(eventually([&] { return other.path->fence(other.told); }));
    EXPECT_EQ(near.pair->state(), State::Connecting) << "neither call has waited for it";
    ASSERT_TRUE(eventually([&] { return near.pair->state() == State::Ready; }));
    EXPECT_EQ(injected("modify_slow"), before + 1);
}

TEST_F(VerbsPathTest, AnAddressOfNobodyFails) {
    near.make_pair(VerbsPath::Role::Sender);
    VerbsAddress nobody = near.pair->own();
    nobody.gid = {};
    nobody.gid.raw[0] = 0xfe;
    nobody.gid.raw[1] = 0x80;
    near.pair->connect(nobody);
    ASSERT_TRUE(eventually([&] { return near.pair->state() == State::Failed; }));
    EXPECT_NE(near.pair->why().find("RTR"), std::string::npos) << near.pair->why();
}

TEST_F(VerbsPathTest, APortOfAnotherLinkLayerIsRefused) {
    near.make_pair(VerbsPath::Role::Sender);
    VerbsAddress other = near.pair->own();
    other.layer = DEFT_VERBS_LINK_LAYER_INFINIBAND;
    near.pair->connect(other);
    EXPECT_EQ(near.pair->state(), State::Failed);
}

TEST_F(VerbsPathTest, MemoryIsRegisteredOnceForAllHolders) {
    std::string problem;
    std::vector<std::shared_ptr<Domain>> domains = {near.domain};
    Memory all;
    all.data = near.memory.data();
    all.size = near.memory.size();
    const Region again(all, domains, problem);
    EXPECT_EQ(again.in(near.domain.get()), near.region->in(near.domain.get()));
}

// What a container's limit on locked memory does: the cause for each, and one WARN with the remedy.
TEST_F(VerbsPathTest, ALimitOnLockedMemoryIsToldOnce) {
    std::vector<std::shared_ptr<Domain>> domains = {near.domain};
    Faults faults("reg_fails=100%");
    ::testing::internal::CaptureStderr();
    for (std::size_t size : {std::size_t{4096}, std::size_t{8192}}) {
        std::string problem;
        Memory part;
        part.data = near.memory.data();
        part.size = size;
        const Region refused(part, domains, problem);
        EXPECT_EQ(refused.in(near.domain.get()), nullptr);
        EXPECT_NE(problem.find("Cannot allocate memory"), std::string::npos) << problem;
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    const auto first = said.find("RLIMIT_MEMLOCK");
    EXPECT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.find("RLIMIT_MEMLOCK", first + 1), std::string::npos) << said;
    EXPECT_NE(said.find("ulimit -l unlimited"), std::string::npos) << said;
}

TEST_F(VerbsPathTest, APeerThatLeavesDuringTheHandshakeIsSeen) {
    int both[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
    VerbsHandshake handshake(near.domain, kOptions, VerbsPath::Role::Sender, UniqueFd(both[0]));
    ::close(both[1]);
    EXPECT_TRUE(
        eventually([&] { return go_on(handshake, near.path) == VerbsHandshake::Result::Failed; }));
    EXPECT_STRNE(handshake.failure(), "");
}

// It tells 32 bytes, then waits for more of a conversation that has no more.
TEST_F(VerbsPathTest, AnEarlierBuildIsNamedOnce) {
    const auto meet = [&](VerbsPath::Role role, std::size_t bytes) {
        int both[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
        const UniqueFd peer(both[1]);
        VerbsHandshake handshake(near.domain, kOptions, role, UniqueFd(both[0]));
        far.make_pair(role == VerbsPath::Role::Sender ? VerbsPath::Role::Receiver
                                                      : VerbsPath::Role::Sender);
        std::array<std::byte, kVerbsAddressBytes> address;
        encode(far.pair->own(), address);
        ASSERT_EQ(::send(peer.get(), address.data(), bytes, 0), static_cast<ssize_t>(bytes));
        ASSERT_TRUE(eventually([&] {
            int left = 1;
            EXPECT_NE(go_on(handshake, near.path), VerbsHandshake::Result::Failed);
            return ::ioctl(both[0], FIONREAD, &left) == 0 && left == 0;
        }));
    };
    ::testing::internal::CaptureStderr();
    meet(VerbsPath::Role::Sender, kVerbsAddressBytes);  // and is given up
    meet(VerbsPath::Role::Receiver, 0);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    ::testing::internal::CaptureStderr();
    meet(VerbsPath::Role::Sender, 32);
    meet(VerbsPath::Role::Receiver, 32);
    const std::string said = ::testing::internal::GetCapturedStderr();
    const auto first = said.find("install one build of deft on every host");
    EXPECT_NE(first, said.npos) << said;
    EXPECT_NE(said.find("TCP carries"), said.npos) << said;
    EXPECT_EQ(said.find('\n'), said.size() - 1) << said;
}

// The device reports a violation if the two ends of a queue pair use unlike ones.
TEST_F(VerbsPathTest, VendorsExtensionsAreThoseOfBothCards) {
    const unsigned long before = violations();
    near.make_pair(VerbsPath::Role::Sender);
    far.make_pair(VerbsPath::Role::Receiver);
    EXPECT_EQ(near.pair->own().ece.options, 0xffU);
    EXPECT_EQ(far.pair->own().ece.options, 0x13fU);
    ASSERT_TRUE(near.pair->agrees(far.pair->own()));
    const auto ready = [](const End& end) {
        return eventually([&] { return end.pair->state() == VerbsQueuePair::State::Ready; });
    };
    far.pair->connect(near.pair->own());
    ASSERT_TRUE(ready(far)) << far.pair->why();
    EXPECT_EQ(far.pair->own().ece.options, 0x3fU);
    near.pair->connect(far.pair->own());
    ASSERT_TRUE(ready(near)) << near.pair->why();
    EXPECT_EQ(near.pair->own().ece.options, 0x3fU);
    ASSERT_EQ(near.path->greet(), Post::Ok);
    ASSERT_TRUE(eventually([&] { return far.path->await_greeting(), far.path->greeted(); }));
    EXPECT_EQ(violations(), before);
}

// It has told of its queue pair, and never speaks over it.
TEST_F(VerbsPathTest, APeerThatLeavesBeforeItsGreetingIsSeen) {
    int both[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
    VerbsHandshake handshake(near.domain, kOptions, VerbsPath::Role::Receiver, UniqueFd(both[0]));
    far.make_pair(VerbsPath::Role::Sender);
    std::array<std::byte, kVerbsAddressBytes> address;
    encode(far.pair->own(), address);
    ASSERT_EQ(::send(both[1], address.data(), address.size(), 0),
              static_cast<ssize_t>(address.size()));
    const auto over = [&] { return go_on(handshake, near.path) == VerbsHandshake::Result::Failed; };
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (std::chrono::steady_clock::now() < end) {
        ASSERT_FALSE(over()) << handshake.failure();
    }
    ::close(both[1]);
    EXPECT_TRUE(eventually(over));
    EXPECT_NE(std::string(handshake.failure()).find("gone"), std::string::npos)
        << handshake.failure();
}

}  // namespace
}  // namespace deft::net::testing
