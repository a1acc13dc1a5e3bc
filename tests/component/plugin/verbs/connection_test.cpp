// SPDX-License-Identifier: Apache-2.0
// Connections of the plugin that drive RDMA ports: from a handle to bytes.
#include "plugin/port_dialer.h"
#include "plugin/port_pairs.h"
#include "tests/component/plugin/tcp/admission.h"
#include "tests/component/plugin/verbs/mixed_pair.h"

namespace deft::net::testing {
namespace {

using VerbsConnection = WithPorts;

TEST_F(VerbsConnection, AMessageGoesOverBothKindsOfLink) {
    MixedPair pair(1, near_, far_);
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.sender->paths(), 2U);
    EXPECT_EQ(pair.up(), 2U);
    EXPECT_EQ(pair.sender->domains().size(), 1U);
    EXPECT_EQ(pair.receiver->domains().size(), 1U);
    ASSERT_TRUE(pair.run(200));
    EXPECT_GT(by_verbs(), 0U);
    EXPECT_GT(by_tcp(), 0U);
}

TEST_F(VerbsConnection, TcpOnThePortsWireIsKeptForFailOver) {
    RdmaPort port = soft_port("near", 2);
    port.interfaces = {"127.0.0.2"};
    MixedPair pair(2, opened({port}), far_);
    const std::uint64_t other = sent_by("127.0.0.3", "tcp");
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.up(), 3U);
    ASSERT_TRUE(pair.run(200));
    EXPECT_GT(by_verbs(), 0U);
    EXPECT_EQ(by_tcp(), 0U);
    EXPECT_GT(sent_by("127.0.0.3", "tcp"), other);
}

// Where the card cannot be used its interface may: TCP has the wire until the path is there.
TEST_F(VerbsConnection, TcpHasThePortsWireWhileThePathOverThePortIsNotUp) {
    RdmaPort port = soft_port("near", 2);
    port.interfaces = {"127.0.0.2"};
    auto faults = std::make_unique<Faults>("reg_fails=100%");
    MixedPair pair(2, opened({port}), far_);
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.up(), 2U);
    ASSERT_TRUE(pair.run(100));
    EXPECT_GT(by_tcp(), 0U);
    faults.reset();
    const Nanos deadline = steady_now() + kPatience;
    while (pair.up() < 3 && steady_now() < deadline) {
        pair.sender->progress(steady_now());
        pair.receiver->progress(steady_now());
    }
    ASSERT_EQ(pair.up(), 3U);
    const std::uint64_t carried = by_tcp();
    ASSERT_TRUE(pair.run(100));
    EXPECT_EQ(by_tcp(), carried);
    EXPECT_GT(by_verbs(), 0U);
}

// Its acknowledgements are lost: after its time-out the path goes, and comes back.
TEST_F(VerbsConnection, APortThatFailsIsCarriedOnWithoutAndTakenBack) {
    MixedPair pair(1, near_, far_);
    ASSERT_TRUE(pair.establish());
    const auto transitions = [] {
        return LinkStats::process().link("near:1", "roce").transitions.load();
    };
    const std::uint64_t before = transitions();
    std::unique_ptr<Faults> faults;
    ASSERT_TRUE(pair.run(400, [&](std::size_t done) {
        if (done == 50) {
            faults = std::make_unique<Faults>("lose_acks=1");
        }
    }));
    EXPECT_EQ(injected("lose_acks"), 1);
    const Nanos deadline = steady_now() + kPatience;
    while ((transitions() < before + 2 || pair.up() < 2) && steady_now() < deadline) {
        pair.sender->progress(steady_now());
        pair.receiver->progress(steady_now());
    }
    EXPECT_GE(transitions(), before + 2) << "it was not lost";
    EXPECT_EQ(pair.up(), 2U);
    const std::uint64_t carried = by_verbs();
    ASSERT_TRUE(pair.run(100));
    EXPECT_GT(by_verbs(), carried);
}

// Both ends wait for their cards to let go of the memory, and take the queue pairs away at last.
TEST_F(VerbsConnection, ACardThatFlushesNothingHoldsUpNoMessage) {
    MixedPair pair(1, near_, far_);
    ASSERT_TRUE(pair.establish());
    const long acks = injected("lose_acks");
    const long flushes = injected("flush_lost");
    ASSERT_TRUE(pair.run(50));
    auto faults = std::make_unique<Faults>("lose_acks=1,flush_lost=100%");
    // The acknowledgements that are lost may be those of the receiver's frames, which hold up
    // nothing: its queue pair ends later.
    const Nanos both_ended = steady_now() + kPatience;
    while (injected("flush_lost") < flushes + 2 && steady_now() < both_ended) {
        ASSERT_TRUE(pair.run(20));
    }
    EXPECT_EQ(injected("lose_acks"), acks + 1);
    EXPECT_GE(injected("flush_lost"), flushes + 2);
    faults.reset();
    const Nanos deadline = steady_now() + kPatience;
    while (pair.up() < 2 && steady_now() < deadline) {
        pair.sender->progress(steady_now());
        pair.receiver->progress(steady_now());
    }
    EXPECT_EQ(pair.up(), 2U);
    ASSERT_TRUE(pair.run(100));
}

// Other connections do not wait for such a pair, and it is tried now and then.
TEST_F(VerbsConnection, APairThatDoesNotAnswerIsRememberedUntilItDoes) {
    const wire::Port peer = to_wire(far_).entries[0];
    auto faults = std::make_unique<Faults>("modify_slow=100%,modify_slow_ms=1300");
    MixedPair pair(1, near_, far_);
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.up(), 1U);
    const auto eventually = [&](const std::function<bool()>& done) {
        const Nanos deadline = steady_now() + kPatience;
        while (!done() && steady_now() < deadline) {
            pair.sender->progress(steady_now());
            pair.receiver->progress(steady_now());
        }
        return done();
    };
    EXPECT_TRUE(eventually([&] { return PortDialer::known_dead(*near_[0], peer); }));
    faults.reset();
    EXPECT_TRUE(eventually([&] { return pair.up() == 2; }));
    EXPECT_FALSE(PortDialer::known_dead(*near_[0], peer));
    ASSERT_TRUE(pair.run(50));
    EXPECT_GT(by_verbs(), 0U);
}

TEST_F(VerbsConnection, WhereOneSideHasNoPortTcpCarriesAll) {
    for (const bool sender : {true, false}) {
        MixedPair pair(1, sender ? near_ : Ports(), sender ? Ports() : far_);
        ASSERT_TRUE(pair.establish());
        EXPECT_EQ(pair.sender->paths(), 1U);
        EXPECT_TRUE(pair.sender->domains().empty());
        EXPECT_TRUE(pair.receiver->domains().empty()) << "memory would be registered in vain";
        ASSERT_TRUE(pair.run(50));
        EXPECT_EQ(by_verbs(), 0U);
    }
}

// The first releases put zeros where a listener tells of its ports.
TEST_F(VerbsConnection, AnOldListenerGetsTcpAlone) {
    MixedPair pair(1, near_, far_);
    wire::Handle old;
    ASSERT_EQ(wire::decode(pair.handle, old), wire::Decoded::Ok);
    old.features = 0;
    old.total_ports = 0;
    old.ports.count = 0;
    wire::encode(old, pair.handle);
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.sender->paths(), 1U);
    ASSERT_TRUE(pair.run(50));
    EXPECT_EQ(by_verbs(), 0U);
}

TEST_F(VerbsConnection, MemoryThatIsNotRegisteredGoesOverTcp) {
    MixedPair pair(1, near_, far_);
    ASSERT_TRUE(pair.establish());
    const Faults faults("reg_fails=100%");
    ASSERT_TRUE(pair.run(50));
    EXPECT_GT(injected("reg_fails"), 0);
    EXPECT_GT(by_tcp(), 0U);
}

TEST_F(VerbsConnection, UnlikeSetsOfPortsAreAllUsed) {
    const Ports two = opened({soft_port("near", 2), soft_port("second", 4)});
    const std::uint64_t before = sent_by("second:1", "roce");
    MixedPair pair(1, two, far_);
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.sender->paths(), 3U);
    EXPECT_EQ(pair.up(), 3U);
    ASSERT_TRUE(pair.run(200));
    EXPECT_GT(by_verbs(), 0U);
    EXPECT_GT(sent_by("second:1", "roce"), before);
}

// Of so many that their addresses do not all fit the handle: the sender asks for the others.
TEST_F(VerbsConnection, PortsThatTheHandleHasNoRoomForAreAskedFor) {
    std::vector<RdmaPort> many(12, soft_port("far", 3));
    MixedPair pair(6, near_, opened(many));
    wire::Handle handle;
    ASSERT_EQ(wire::decode(pair.handle, handle), wire::Decoded::Ok);
    EXPECT_LT(handle.ports.count, 12U);
    EXPECT_EQ(handle.total_ports, 12U);
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.sender->paths(), wire::kMaxPaths) << "6 over TCP, 6 of the handle, 4 asked for";
    EXPECT_GT(pair.up(), 6U);
    ASSERT_TRUE(pair.run(50));
    EXPECT_GT(by_verbs(), 0U);
}

// What a peer says is no index before it is checked.
TEST_F(VerbsConnection, APortThatWasNotOfferedIsRefused) {
    ConnectionOptions options;
    options.ports = far_;
    TcpPair pair(1, 30 * kSecond, options);
    wire::Hello hello = hello_for(decoded(pair));
    hello.kind = wire::Hello::kPort;
    hello.flags = wire::kFlagMixed;
    hello.remote_port = 1;
    const UniqueFd stranger = next(decoded(pair));
    say(stranger, hello);
    std::vector<std::byte> heard;
    EXPECT_TRUE(closed(stranger, pair, &heard));
    ASSERT_EQ(heard.size(), wire::kWelcomeBytes);
    wire::Welcome welcome;
    EXPECT_EQ(wire::decode(std::span<const std::byte, wire::kWelcomeBytes>(heard.data(),
                                                                           wire::kWelcomeBytes),
                           welcome),
              wire::Decoded::Ok);
    EXPECT_EQ(welcome.answer, wire::Answer::Refused);
}

// Its first path has not said that there would be any: nobody takes them up.
TEST_F(VerbsConnection, AConnectionOverTcpAloneHasNoPathsOverRdma) {
    ConnectionOptions options;
    options.ports = far_;
    TcpPair pair(1, 30 * kSecond, options);
    wire::Hello hello = hello_for(decoded(pair));
    hello.paths = 2;
    const UniqueFd first = next(decoded(pair));
    say(first, hello);
    const Nanos deadline = steady_now() + kPatience;
    while (pair.receiver == nullptr && steady_now() < deadline) {
        pair.receiver = pair.listener->accept(steady_now());
    }
    ASSERT_NE(pair.receiver, nullptr);
    hello.path = 1;
    hello.kind = wire::Hello::kPort;
    const UniqueFd second = next(decoded(pair));
    say(second, hello);
    std::byte byte{};
    ssize_t got = -1;
    while (got < 0 && steady_now() < deadline) {
        pair.receiver->progress(steady_now());
        got = recv(second.get(), &byte, 1, MSG_DONTWAIT);
    }
    EXPECT_EQ(got, 0) << "it was welcomed";
    EXPECT_FALSE(pair.receiver->failure());
    EXPECT_EQ(pair.receiver->state(0), PathState::Up);
}

// ibv_modify_qp may take a second: the calls that NCCL makes meanwhile do not.
TEST_F(VerbsConnection, ASlowNeighbourHoldsNobodyUp) {
    const Faults faults("modify_slow=100%,modify_slow_ms=700");
    MixedPair pair(1, near_, far_);
    ASSERT_TRUE(pair.establish());
    EXPECT_GT(injected("modify_slow"), 0);
    ASSERT_TRUE(pair.run(100));
    EXPECT_GT(by_verbs(), 0U);
}

}  // namespace
}  // namespace deft::net::testing
