// SPDX-License-Identifier: Apache-2.0
// Links that die and come back under load, on a virtual clock. Every case names its fault and
// checks that it was injected (a link was reconnected, bytes were sent again).
#include <gtest/gtest.h>

#include "deft/abi/net.h"
#include "tests/component/plugin/core/traffic.h"

namespace deft::net::testing {
namespace {

struct Fault {
    const char* name;
    void (*inject)(FakeLink& link, bool on);
    Nanos stall;  // longest that is acceptable
    Nanos until;  // long enough for the path to be given up
    std::size_t messages;
};

const Fault kFaults[] = {
    {"carrier lost", [](FakeLink& link, bool on) { link.carrier = !on; }, 100 * kMillisecond,
     3 * kSecond, 350},
    {"black hole", [](FakeLink& link, bool on) { link.black_hole = on; }, kSecond, 6 * kSecond,
     600},
    {"one-way black hole", [](FakeLink& link, bool on) { link.black_hole = link.one_way = on; },
     kSecond, 6 * kSecond, 600},
};

// Both ends are driven, with nothing to do.
void drive(FakeWire& wire, Nanos time) {
    for (const Nanos end = wire.now + time; wire.now < end; wire.now += kMillisecond) {
        wire.sender->progress(wire.now);
        wire.receiver->progress(wire.now);
    }
}

TEST(Failover, LinkDiesAndComesBackUnderLoad) {
    for (const Fault& fault : kFaults) {
        for (const std::size_t victim : {0, 1}) {
            SCOPED_TRACE(std::string(fault.name) + " on link " + std::to_string(victim));
            FakeWire wire({link(0.2), link(0.1)});
            ASSERT_TRUE(wire.establish());
            TrafficOptions options;
            options.messages = fault.messages;
            options.each_step = [&](Nanos since) {
                fault.inject(wire.links[victim], since > kSecond && since < fault.until);
            };
            const TrafficResult result = run_traffic(wire, options);
            ASSERT_TRUE(result.complete) << wire.sender->failure().text;
            EXPECT_LE(result.longest_stall, fault.stall);
            EXPECT_GT(wire.counters[victim]->transitions.load(), 2U);
            EXPECT_GT(wire.counters[victim]->resent_bytes.load(), 0U);
            EXPECT_EQ(wire.links[victim].connections, 2);
            EXPECT_EQ(wire.sender->state(victim), PathState::Up);  // it was given back its place
        }
    }
}

// A cable at the other end of a switch: the sender's own link looks well. What the receiver says
// must not be lost either, if the path that is left has no room just then.
TEST(Failover, TheReceiverTellsOfALinkThatOnlyItSeesDie) {
    for (const int lost : {0, 1, 3}) {
        for (const std::size_t victim : {0, 1}) {
            SCOPED_TRACE("link " + std::to_string(victim) + ", lost " + std::to_string(lost));
            FakeWire wire({link(0.2), link(0.1)});
            ASSERT_TRUE(wire.establish());
            wire.links[victim].sees[0] = false;
            wire.links[1 - victim].downs_lost = lost;
            Nanos noticed = 0;
            TrafficOptions options;
            options.messages = 200;
            options.each_step = [&](Nanos since) {
                wire.links[victim].carrier = since < kSecond || since > 2 * kSecond;
                if (noticed == 0 && wire.sender->state(victim) != PathState::Up) {
                    noticed = since;
                }
            };
            const TrafficResult result = run_traffic(wire, options);
            ASSERT_TRUE(result.complete) << wire.sender->failure().text;
            EXPECT_GE(noticed, kSecond);
            EXPECT_LE(noticed, kSecond + 20 * kMillisecond);
            EXPECT_LE(result.longest_stall, 100 * kMillisecond);
            EXPECT_EQ(wire.links[1 - victim].downs_lost, 0);
            EXPECT_EQ(wire.links[victim].connections, 2);
        }
    }
}

// Both cables go at the receiver, and one comes back: the sender is told of the other then.
TEST(Failover, TheFirstPathThatComesBackTellsOfThoseThatDoNot) {
    FakeWire wire({link(0.2), link(0.1)});
    ASSERT_TRUE(wire.establish());
    wire.links[0].sees[0] = wire.links[1].sees[0] = false;
    wire.links[0].hangs = wire.links[1].hangs = true;
    wire.links[0].carrier = wire.links[1].carrier = false;
    drive(wire, 300 * kMillisecond);
    EXPECT_EQ(wire.receiver->state(1), PathState::Down);
    EXPECT_EQ(wire.sender->state(1), PathState::Up);
    wire.links[0].carrier = true;
    drive(wire, 300 * kMillisecond);
    EXPECT_EQ(wire.sender->state(0), PathState::Up);
    EXPECT_NE(wire.sender->state(1), PathState::Up);
}

// Its welcomes come one after the other, over links of different latency.
TEST(Failover, ALatePeerIsConnectedOverAllPaths) {
    for (const Nanos late : {kSecond, 5 * kSecond, 70 * kSecond}) {
        SCOPED_TRACE(late / kSecond);
        FakeWire wire({link(1), link(1), link(1)}, 500 * kMillisecond);
        for (std::size_t i = 0; i < 3; ++i) {
            wire.links[i].accepts_at = kSecond + late + static_cast<Nanos>(i) * kMillisecond;
        }
        Sender::Ready ready = Sender::Ready::NotYet;
        for (; wire.now < late + 5 * kSecond && ready == Sender::Ready::NotYet;
             wire.now += 100 * kMicrosecond) {
            ready = wire.sender->establish(wire.now);
            (void)wire.receiver->establish(wire.now);
        }
        ASSERT_EQ(ready, Sender::Ready::Yes) << wire.sender->failure().text;
        for (std::size_t i = 0; i < 3; ++i) {
            EXPECT_EQ(wire.sender->state(i), PathState::Up) << i;
            EXPECT_EQ(wire.links[i].attempts, 1) << i;
        }
    }
}

// The attempt that runs when the link returns was begun while it was gone: nothing it sent came
// through, and the kernel repeats it only after a second.
TEST(Failover, ALinkThatReturnsStartsTheAttemptAnew) {
    FakeWire wire({link(0.2), link(0.1)});
    ASSERT_TRUE(wire.establish());
    wire.links[0].hangs = true;
    for (int outage = 1500; outage <= 4500; outage += 100) {
        SCOPED_TRACE("after " + std::to_string(outage) + " ms");
        wire.links[0].carrier = false;
        drive(wire, outage * kMillisecond);
        EXPECT_NE(wire.sender->state(0), PathState::Up);
        wire.links[0].carrier = true;
        drive(wire, 150 * kMillisecond);
        EXPECT_EQ(wire.sender->state(0), PathState::Up);
        drive(wire, 3 * kSecond);  // trusted again
    }
    EXPECT_EQ(wire.links[0].connections, 32);
}

// A switch port, say, passes nothing on for a while after it has the carrier.
TEST(Failover, ALinkThatReturnsIsTriedOftenAtFirst) {
    FakeWire wire({link(0.2), link(0.1)});
    ASSERT_TRUE(wire.establish());
    wire.links[0].hangs = true;
    wire.links[0].carrier = false;
    drive(wire, 20 * kSecond);
    wire.links[0].black_hole = wire.links[0].carrier = true;
    drive(wire, 1100 * kMillisecond);  // too long for the first attempt
    wire.links[0].black_hole = false;
    drive(wire, kSecond);
    EXPECT_EQ(wire.sender->state(0), PathState::Up);
}

// No carrier tells, and every second attempt is wasted.
TEST(Failover, ALinkIsBackInUseWithinFiveSeconds) {
    FakeWire wire({link(0.2), link(0.1)});
    ASSERT_TRUE(wire.establish());
    wire.links[0].hangs = wire.links[0].half_wrong = true;
    Nanos longest = 0;
    for (int outage = 10000; outage < 17000; outage += 150) {
        wire.links[0].carrier = false;
        drive(wire, kSecond);
        wire.links[0].carrier = wire.links[0].black_hole = true;
        drive(wire, outage * kMillisecond);
        wire.links[0].black_hole = false;
        const Nanos returned = wire.now;
        while (wire.sender->state(0) != PathState::Up && wire.now - returned < 20 * kSecond) {
            drive(wire, 10 * kMillisecond);
        }
        longest = std::max(longest, wire.now - returned);
        drive(wire, 3 * kSecond);
    }
    EXPECT_GT(longest, kSecond);
    EXPECT_LE(longest, 4500 * kMillisecond);
}

TEST(Failover, AFlappingLinkIsNoReasonToDialAllTheTime) {
    for (const bool hangs : {false, true}) {
        for (const bool answered : {false, true}) {
            FakeWire wire({link(0.2), link(0.1)});
            ASSERT_TRUE(wire.establish());
            wire.links[0].hangs = hangs;
            wire.links[0].black_hole = !answered;
            const int before = wire.links[0].attempts;
            for (int i = 0; i < 1000; ++i) {
                wire.links[0].carrier = i % 2 == 1;
                drive(wire, 5 * kMillisecond);
            }
            EXPECT_GE(wire.links[0].attempts - before, 10);
            EXPECT_LE(wire.links[0].attempts - before, 75) << "in five seconds";
            wire.links[0].black_hole = false;
            drive(wire, 3 * kSecond);
            EXPECT_EQ(wire.sender->state(0), PathState::Up);
        }
    }
}

// Crowded, not dead: the acknowledgements that it still owes would be lost with the path.
TEST(Failover, APathThatIsSilentForTwoSecondsIsNotMadeAnew) {
    FakeWire wire({link(0.2), link(0.1)});
    ASSERT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = 350;
    options.each_step = [&](Nanos since) {
        wire.links[0].black_hole = since > kSecond && since < 3 * kSecond;
    };
    const TrafficResult result = run_traffic(wire, options);
    ASSERT_TRUE(result.complete) << wire.sender->failure().text;
    EXPECT_LE(result.longest_stall, kSecond);
    EXPECT_GT(wire.counters[0]->transitions.load(), 0U);  // it was suspect
    EXPECT_EQ(wire.links[0].connections, 1);
    EXPECT_EQ(wire.sender->state(0), PathState::Up);
}

TEST(Failover, EveryLinkDiesForAWhile) {
    FakeWire wire({link(0.2), link(0.1)});
    ASSERT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = 150;
    options.each_step = [&](Nanos since) {
        const bool dark = since > 500 * kMillisecond && since < 4 * kSecond;
        wire.links[0].black_hole = wire.links[1].black_hole = dark;
    };
    const TrafficResult result = run_traffic(wire, options);
    EXPECT_TRUE(result.complete) << wire.sender->failure().text << wire.receiver->failure().text;
    EXPECT_GT(result.longest_stall, 3 * kSecond);
}

TEST(Failover, OnePathAloneIsMadeAnew) {
    FakeWire wire({link(0.2)});
    ASSERT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = 400;
    options.size = [](std::size_t message) { return message % 2 == 0 ? 100 : 300000; };
    options.each_step = [&](Nanos since) {
        wire.links[0].carrier = since < kSecond || since > 2 * kSecond;
    };
    const TrafficResult result = run_traffic(wire, options);
    EXPECT_TRUE(result.complete) << wire.sender->failure().text << wire.receiver->failure().text;
    EXPECT_EQ(wire.links[0].connections, 2);
}

TEST(Failover, LastLinkLostFailsBothEndsInTime) {
    FakeWire wire({link(0.2), link(0.1)}, 5 * kSecond);
    ASSERT_TRUE(wire.establish());
    std::vector<std::byte> data(1 << 20);
    std::vector<std::byte> buffer(1 << 20);
    Request* send = wire.sender->isend(data.data(), data.size(), wire.now);
    Request* receive = wire.receiver->irecv(buffer.data(), buffer.size(), false, wire.now);
    ASSERT_TRUE(send != nullptr && receive != nullptr);
    wire.now += kMillisecond;
    (void)wire.sender->test(send, wire.now, nullptr);  // it hears of the receive
    for (FakeLink& fake : wire.links) {
        fake.black_hole = true;
        fake.times_out = 2 * kSecond;
        fake.silence = 2 * kSecond;
    }
    const Nanos cut = wire.now;
    while (!(wire.sender->failure() && wire.receiver->failure()) && wire.now - cut < 60 * kSecond) {
        wire.now += kMillisecond;
        (void)wire.sender->test(send, wire.now, nullptr);
        (void)wire.receiver->test(receive, wire.now, nullptr);
    }
    EXPECT_TRUE(wire.sender->failure());
    EXPECT_TRUE(wire.receiver->failure());
    EXPECT_LE(wire.now - cut, 6 * kSecond);
}

TEST(Failover, DeadPeerIsNoticedPromptly) {
    FakeWire wire({link(1), link(1)});
    ASSERT_TRUE(wire.establish());
    std::vector<std::byte> data(1 << 20);
    Request* send = wire.sender->isend(data.data(), data.size(), wire.now);
    ASSERT_NE(send, nullptr);
    wire.receiver.reset();
    wire.receiver_listens = false;
    const Nanos died = wire.now;
    while (!wire.sender->failure() && wire.now - died < 60 * kSecond) {
        wire.now += kMillisecond;
        (void)wire.sender->test(send, wire.now, nullptr);
    }
    EXPECT_TRUE(wire.sender->failure());
    EXPECT_LE(wire.now - died, 2 * kSecond);
}

// Both cables at the receiver's side are out, back, and out again: it has closed the paths, and
// each attempt since has failed.
TEST(Failover, ASenderGivesAPeerWhoseLinksFlapTimeToComeBack) {
    FakeWire wire({link(1), link(1)});
    ASSERT_TRUE(wire.establish());
    std::vector<std::byte> data(1 << 20);
    std::vector<std::byte> buffer(1 << 20);
    Request* send = wire.sender->isend(data.data(), data.size(), wire.now);
    Request* receive = wire.receiver->irecv(buffer.data(), buffer.size(), false, wire.now);
    ASSERT_TRUE(send != nullptr && receive != nullptr);
    bool sent = false;
    bool received = false;
    for (Nanos since = 0; since < 8 * kSecond; since += kMillisecond, wire.now += kMillisecond) {
        for (FakeLink& each : wire.links) {
            each.sees[0] = false;
            each.carrier =
                (since >= 100 * kMillisecond && since < 103 * kMillisecond) || since >= 3 * kSecond;
        }
        if (!sent) {
            sent = wire.sender->test(send, wire.now, nullptr);
        }
        if (!received) {
            received = wire.receiver->test(receive, wire.now, nullptr);
        }
    }
    EXPECT_TRUE(sent) << wire.sender->failure().text;
    EXPECT_TRUE(received) << wire.receiver->failure().text;
}

// What the idle thread does, which drives both ends seldom and while nobody waits for anything.
void rest(FakeWire& wire, Nanos time) {
    for (const Nanos end = wire.now + time; wire.now < end; wire.now += 250 * kMillisecond) {
        for (int i = 0; i < 20; ++i, wire.now += kMillisecond) {
            if (wire.sender) {
                wire.sender->progress(wire.now);
            }
            if (wire.receiver) {
                wire.receiver->progress(wire.now);
            }
        }
    }
}

TEST(Failover, AnOutageThatNobodyAskedInIsNoError) {
    FakeWire wire({link(0.2), link(0.1)}, 5 * kSecond);
    ASSERT_TRUE(wire.establish());
    for (FakeLink& fake : wire.links) {
        fake.black_hole = true;
        fake.times_out = 2 * kSecond;
    }
    rest(wire, 60 * kSecond);
    EXPECT_EQ(wire.sender->state(0), PathState::Down);
    EXPECT_FALSE(wire.sender->failure()) << wire.sender->failure().text;
    EXPECT_FALSE(wire.receiver->failure()) << wire.receiver->failure().text;
    for (FakeLink& fake : wire.links) {
        fake.black_hole = false;
    }
    rest(wire, 4 * kSecond);
    EXPECT_EQ(wire.sender->state(0), PathState::Up);
    EXPECT_TRUE(run_traffic(wire, {}).complete);

    for (FakeLink& fake : wire.links) {
        fake.black_hole = true;
        fake.times_out = 2 * kSecond;
    }
    rest(wire, 60 * kSecond);
    std::vector<std::byte> data(1 << 20);
    const Nanos asked = wire.now;
    Request* send = wire.sender->isend(data.data(), data.size(), wire.now);
    Request* receive = wire.receiver->irecv(data.data(), data.size(), false, wire.now);
    ASSERT_TRUE(send != nullptr && receive != nullptr);
    while (!(wire.sender->failure() && wire.receiver->failure()) &&
           wire.now - asked < 60 * kSecond) {
        wire.now += kMillisecond;
        (void)wire.sender->test(send, wire.now, nullptr);
        (void)wire.receiver->test(receive, wire.now, nullptr);
    }
    EXPECT_LE(wire.now - asked, 6 * kSecond);
}

TEST(Failover, APeerThatClosedIsAnErrorForWhoAsks) {
    for (const std::size_t links : {1, 2}) {
        for (const bool receiver_closes : {false, true}) {
            FakeWire wire(std::vector<FakeLink>(links, link(1)));
            ASSERT_TRUE(wire.establish());
            // Small ones on a single path are not all acknowledged.
            TrafficOptions options;
            options.size = [](std::size_t) { return 100; };
            ASSERT_TRUE(run_traffic(wire, options).complete);
            wire.receiver_listens = false;
            receiver_closes ? wire.receiver.reset() : wire.sender.reset();
            rest(wire, 20 * kSecond);
            const Failure& failure =
                receiver_closes ? wire.sender->failure() : wire.receiver->failure();
            EXPECT_FALSE(failure) << failure.text;
            std::vector<std::byte> data(100);
            const Nanos asked = wire.now;
            Request* const request =
                receiver_closes ? wire.sender->isend(data.data(), data.size(), wire.now)
                                : wire.receiver->irecv(data.data(), data.size(), false, wire.now);
            ASSERT_NE(request, nullptr);
            while (!failure && wire.now - asked < 60 * kSecond) {
                wire.now += kMillisecond;
                (void)(receiver_closes ? wire.sender->test(request, wire.now, nullptr)
                                       : wire.receiver->test(request, wire.now, nullptr));
            }
            EXPECT_EQ(failure.code, DEFT_NET_REMOTE_ERROR);
            EXPECT_LE(wire.now - asked, 2 * kSecond);
        }
    }
}

// It listens on, for other connections.
TEST(Failover, APeerThatSaidGoodbyeIsNotDialled) {
    for (const std::size_t links : {1, 2}) {
        FakeWire wire(std::vector<FakeLink>(links, link(1)));
        ASSERT_TRUE(wire.establish());
        wire.receiver.reset();
        for (const Nanos end = wire.now + 10 * kSecond; wire.now < end; wire.now += kMillisecond) {
            wire.sender->progress(wire.now);
        }
        for (std::size_t i = 0; i < links; ++i) {
            EXPECT_EQ(wire.sender->state(i), PathState::Down);
            EXPECT_EQ(wire.links[i].attempts, 1) << "the first";
        }
        EXPECT_FALSE(wire.sender->failure()) << "nobody asked";
    }
}

TEST(Failover, RandomFaultSchedulesAreBitExact) {
    std::uint64_t resent = 0;
    int connections = 0;
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937_64 random(seed);
        FakeWire wire({link(0.3), link(0.1), link(0.2)});
        ASSERT_TRUE(wire.establish());
        Nanos next = 0;
        TrafficOptions options;
        options.messages = 100;
        options.seed = seed;
        options.step = 20 * kMicrosecond;
        options.capacity = 400000;
        options.size = [seed](std::size_t message) {
            return std::mt19937_64(seed * 1000 + message)() % 400000;
        };
        options.each_step = [&](Nanos since) {
            if (since < next) {
                return;
            }
            next = since + static_cast<Nanos>(random() % 80) * kMillisecond;
            FakeLink& victim = wire.links[random() % wire.links.size()];
            victim.carrier = random() % 3 != 0;
            victim.black_hole = random() % 3 == 0;
            victim.one_way = random() % 2 == 0;
            // At least one link works, or nothing would be shown within the limit.
            wire.links[seed % 3].carrier = true;
            wire.links[seed % 3].black_hole = false;
        };
        const TrafficResult result = run_traffic(wire, options);
        ASSERT_TRUE(result.complete)
            << wire.sender->failure().text << wire.receiver->failure().text;
        for (std::size_t i = 0; i < wire.links.size(); ++i) {
            resent += wire.counters[i]->resent_bytes.load();
            connections += wire.links[i].connections;
        }
    }
    EXPECT_GT(resent, 1U << 20);  // the faults did hit
    EXPECT_GT(connections, 350);  // of 300 that were there from the beginning
}

// What a path does now and then, off the way of messages (TcpPath looks for losses).
TEST(Failover, PathsAreLookedAfterWhileTheyAreUp) {
    FakeWire wire({link(10), link(10)});
    ASSERT_TRUE(wire.establish());
    wire.links[1].carrier = false;
    wire.sender->progress(wire.now += 2 * kMillisecond);
    const std::uint64_t before[2] = {wire.links[0].looked_after, wire.links[1].looked_after};
    for (int i = 0; i < 100; ++i) {
        wire.sender->progress(wire.now += kMillisecond);
    }
    EXPECT_GE(wire.links[0].looked_after, before[0] + 90);
    EXPECT_LE(wire.links[0].looked_after, before[0] + 100);
    EXPECT_EQ(wire.links[1].looked_after, before[1]);
}

}  // namespace
}  // namespace deft::net::testing
