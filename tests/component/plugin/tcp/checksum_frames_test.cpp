// SPDX-License-Identifier: Apache-2.0
// Bits that flip in deft's own frames: what makes a connection, headers, acknowledgements.
#include <gtest/gtest.h>

#include "tests/component/plugin/tcp/checksum_scene.h"

namespace deft::net::testing {
namespace {

// Of the frames that make a connection: one end would take it for another one, or for further than
// it is.
TEST(Checksum, FlippedBitsInTheFirstFramesAreTriedAgain) {
    for (const bool to_receiver : {true, false}) {
        for (const long at : {to_receiver ? 36 : 20, to_receiver ? 100 : 28}) {
            SCOPED_TRACE(std::to_string(to_receiver) + ": byte " + std::to_string(at));
            DamagedScene scene(2, 2, true);
            scene.relay[0]->damage = [=, done = false](bool towards, std::uint64_t begin,
                                                       std::size_t size) mutable -> long {
                const long byte = at - static_cast<long>(begin);
                if (done || towards != to_receiver || byte < 0 || byte >= static_cast<long>(size)) {
                    return -1;
                }
                done = true;
                return byte;
            };
            ASSERT_TRUE(scene.establish());
            const Outcome outcome = run(scene, 20, 100000);
            EXPECT_TRUE(outcome.complete) << scene.pair.sender->failure().text;
            EXPECT_EQ(outcome.wrong, 0U);
            EXPECT_EQ(scene.flips(), 1U);
        }
    }
}

// A flipped count of completed messages would make the sender forget what has not arrived.
TEST(Checksum, FlippedAcknowledgementsAreNoticed) {
    for (const std::size_t links : {1, 2}) {
        SCOPED_TRACE(links);
        DamagedScene scene(links, links, true);
        for (auto& relay : scene.relay) {
            relay->damage = once_in(1500, false, 700);
        }
        ASSERT_TRUE(scene.establish());
        const Outcome outcome = run(scene, 150, 300000);
        EXPECT_TRUE(outcome.complete) << scene.pair.sender->failure().text;
        EXPECT_EQ(outcome.wrong, 0U);
        EXPECT_GT(scene.flips(), 0U);
    }
}

// Flips a bit of one byte after the other of a direction's second frame of `frame` bytes on each
// connection: `first` bytes come before the first frame, and it takes `every`.
struct EachByte {
    bool to_receiver;
    std::uint64_t first;
    std::uint64_t every;
    std::size_t frame;
    std::size_t byte = 0;  // the next one's

    long operator()(bool towards, std::uint64_t begin, std::size_t size) {
        if (towards != to_receiver || byte == frame) {
            return -1;
        }
        const std::uint64_t at = first + every + byte;
        if (at < begin || at >= begin + size) {
            return -1;
        }
        ++byte;
        return static_cast<long>(at - begin);
    }
};

// Without checksums of the job's bytes. The path ends, and everything is sent again.
TEST(Checksum, HeadersAndAcknowledgementsHaveTheirsAlways) {
    for (const std::size_t size : {std::size_t{8}, std::size_t{3000}, std::size_t{40'000}}) {
        for (const bool to_receiver : {true, false}) {
            SCOPED_TRACE(std::to_string(size) + (to_receiver ? " headers" : " acknowledgements"));
            DamagedScene scene(1, 1, false);
            const EachByte damage =
                to_receiver
                    ? EachByte{true, wire::kHelloBytes, wire::kChunkBytes + size, wire::kChunkBytes}
                    : EachByte{false, wire::kWelcomeBytes, wire::kControlBytes,
                               wire::kControlBytes};
            scene.relay[0]->damage = damage;
            ASSERT_TRUE(scene.establish());
            std::vector<std::byte> buffer(size);
            const Nanos deadline = steady_now() + kPatience;
            for (unsigned i = 0; scene.flips() < damage.frame && steady_now() < deadline; ++i) {
                const std::vector<std::byte> data = bytes_of(size, i);
                std::fill(buffer.begin(), buffer.end(), std::byte{0});
                ASSERT_TRUE(exchange(scene, data, buffer)) << "message " << i;
                ASSERT_TRUE(data == buffer) << "message " << i;
            }
            EXPECT_EQ(scene.flips(), damage.frame);
            EXPECT_GE(scene.relay[0]->connections, damage.frame);
        }
    }
}

}  // namespace
}  // namespace deft::net::testing
