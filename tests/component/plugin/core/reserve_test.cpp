// SPDX-License-Identifier: Apache-2.0
// Links that carry only while no other does.
#include <gtest/gtest.h>

#include "base/presence.h"
#include "tests/component/plugin/core/traffic.h"

namespace deft::net::testing {
namespace {

// What shows that pieces of full size get through.
constexpr std::uint64_t kProof = 512 * 1024;

int told() {
    return Presence::process().on_reserve.load();
}

FakeLink kept(double gbit, std::uint32_t gives_way_to) {
    FakeLink made = link(gbit);
    made.reserve = true;
    made.gives_way_to = gives_way_to;
    return made;
}

// The shim ends plans while one does.
TEST(Reserve, CarriesWhileNoOtherDoesAndThatIsTold) {
    {
        FakeWire wire({link(1), kept(2, 1)});
        ASSERT_TRUE(wire.establish());
        EXPECT_EQ(told(), 0);
        std::uint64_t before = 0;
        std::uint64_t after = 0;
        int meanwhile = 0;
        TrafficOptions options;
        options.messages = 400;
        options.each_step = [&](Nanos since) {
            const std::uint64_t sent = wire.counters[1]->bytes_sent.load();
            wire.links[0].carrier = since < 250 * kMillisecond || since > 700 * kMillisecond;
            before = since < 250 * kMillisecond ? sent : before;
            meanwhile = since < 600 * kMillisecond ? told() : meanwhile;
            after = since < 1000 * kMillisecond ? sent : after;
        };
        const TrafficResult result = Traffic(wire, options).run();
        ASSERT_TRUE(result.complete) << wire.sender->failure().text;
        EXPECT_GT(result.elapsed, 1100 * kMillisecond);
        EXPECT_LE(before, kProof);
        EXPECT_GT(after, 20 * kProof);
        EXPECT_EQ(meanwhile, 1);
        EXPECT_EQ(told(), 0) << "the other was back";
        EXPECT_EQ(wire.counters[1]->bytes_sent.load(), after);
        options.messages = 20;
        options.each_step = [&](Nanos) { wire.links[0].carrier = false; };
        ASSERT_TRUE(Traffic(wire, options).run().complete);
        EXPECT_EQ(told(), 1);
    }
    EXPECT_EQ(told(), 0) << "the connection has gone";
}

// One of two that it is for is enough.
TEST(Reserve, RestsWhileAnyOtherCarries) {
    FakeWire wire({link(1), link(0.5), kept(4, 3)});
    ASSERT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = 200;
    options.each_step = [&](Nanos since) { wire.links[0].carrier = since < 100 * kMillisecond; };
    ASSERT_TRUE(Traffic(wire, options).run().complete);
    EXPECT_LE(wire.counters[2]->bytes_sent.load(), kProof);
    EXPECT_EQ(told(), 0);
}

}  // namespace
}  // namespace deft::net::testing
