// SPDX-License-Identifier: Apache-2.0
// Bits that flip on the way, which TCP's own checksum is assumed not to notice.
#include <gtest/gtest.h>

#include "tests/component/plugin/tcp/checksum_scene.h"

namespace deft::net::testing {
namespace {

TEST(Checksum, WithoutItAFlippedBitIsDelivered) {
    DamagedScene scene(1, 1, false);
    ASSERT_TRUE(scene.establish());
    // In the midst of the payload of a large message.
    scene.relay[0]->damage = [done = false](bool towards, std::uint64_t begin,
                                            std::size_t size) mutable -> long {
        if (done || !towards || begin < 100000 || size < 1000) {
            return -1;
        }
        done = true;
        return 500;
    };
    std::vector<std::byte> data = bytes_of(1 << 20, 1);
    std::vector<std::byte> buffer(1 << 20);
    Request* receive =
        scene.pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now());
    Request* send = scene.pair.sender->isend(data.data(), data.size(), steady_now());
    const Nanos deadline = steady_now() + kPatience;
    bool sent = false;
    bool received = false;
    while (!(sent && received) && steady_now() < deadline) {
        scene.step();
        if (!sent) {
            sent = scene.pair.sender->test(send, steady_now(), nullptr);
        }
        if (!received) {
            received = scene.pair.receiver->test(receive, steady_now(), nullptr);
        }
    }
    ASSERT_TRUE(sent && received);
    EXPECT_EQ(scene.flips(), 1U);
    EXPECT_NE(data, buffer);
}

TEST(Checksum, FlippedBitsAreSentAgain) {
    for (const std::size_t links : {1, 2}) {
        SCOPED_TRACE(links);
        DamagedScene scene(links, links, true);
        for (auto& relay : scene.relay) {
            relay->damage = once_in(1'000'000, true);
        }
        ASSERT_TRUE(scene.establish());
        const std::uint64_t before = resent();
        ::testing::internal::CaptureStderr();
        const Outcome outcome = run(scene, 120, 400000);
        const std::string said = ::testing::internal::GetCapturedStderr();
        EXPECT_TRUE(outcome.complete) << scene.pair.sender->failure().text;
        EXPECT_EQ(outcome.wrong, 0U);
        EXPECT_GT(scene.flips(), 1U);
        const std::size_t warned = said.find("arrived damaged");
        EXPECT_NE(warned, std::string::npos) << said;
        EXPECT_EQ(said.find("arrived damaged", warned + 1), std::string::npos) << said;
        EXPECT_GT(scene.relay[0]->connections, 1U);
        EXPECT_GT(resent(), before);
    }
}

// Small messages are done for NCCL before they are acknowledged: their copies are sent again.
TEST(Checksum, FlippedBitsOfSmallMessagesAreSentAgain) {
    DamagedScene scene(1, 1, true);
    scene.relay[0]->damage = once_in(200'000, true);
    ASSERT_TRUE(scene.establish());
    const Outcome outcome = run(scene, 400, 6000, 8);
    EXPECT_TRUE(outcome.complete) << scene.pair.sender->failure().text;
    EXPECT_EQ(outcome.wrong, 0U);
    EXPECT_GT(scene.flips(), 0U);
}

// NCCL's GPUs look for the flags of LL and LL128 inside a message while it comes.
TEST(Checksum, BytesAreSeenOnlyOnceTheyAreVerified) {
    for (const bool flip : {false, true}) {
        for (const std::size_t size :
             {std::size_t{100}, std::size_t{8'300}, std::size_t{65'536}, std::size_t{614'400}}) {
            for (const std::size_t links : {1, 2}) {
                SCOPED_TRACE(std::to_string(size) + (flip ? ", damaged" : "") +
                             ", links: " + std::to_string(links));
                DamagedScene scene(links, links, true);
                ASSERT_TRUE(scene.establish());
                const std::vector<std::byte> data(size, std::byte{0x55});
                const std::vector<std::byte> nothing(size);
                std::vector<std::byte> buffer(size);
                std::uint64_t seen = 0;
                bool flipped = !flip;
                for (auto& relay : scene.relay) {
                    relay->damage = [&](bool towards, std::uint64_t, std::size_t bytes) -> long {
                        seen += towards ? bytes : 0;
                        if (!towards || flipped || seen < size) {
                            return -1;
                        }
                        flipped = true;  // in the last piece
                        return static_cast<long>(bytes) - 1;
                    };
                }
                Request* const receive =
                    scene.pair.receiver->irecv(buffer.data(), size, false, steady_now());
                ASSERT_NE(receive, nullptr);
                Request* send = nullptr;
                bool sent = false;
                bool received = false;
                const Nanos deadline = steady_now() + kPatience;
                while (!(sent && received) && steady_now() < deadline) {
                    scene.step();
                    send = send != nullptr
                               ? send
                               : scene.pair.sender->isend(data.data(), size, steady_now());
                    if (!sent) {
                        sent =
                            send != nullptr && scene.pair.sender->test(send, steady_now(), nullptr);
                    }
                    received =
                        received || scene.pair.receiver->test(receive, steady_now(), nullptr);
                    // Chunks of what was cut become visible one by one, each when it is verified.
                    for (std::size_t at = 0; at < size; at += 4096) {
                        ASSERT_TRUE(buffer[at] == std::byte{0} || buffer[at] == data[at]);
                    }
                    ASSERT_TRUE(received || links > 1 || buffer == nothing);
                    ASSERT_TRUE(received || buffer.back() == std::byte{0} || links > 1);
                }
                ASSERT_TRUE(sent && received);
                EXPECT_TRUE(buffer == data);
                EXPECT_EQ(scene.flips(), flip ? 1U : 0U);
            }
        }
    }
}

TEST(Checksum, PathThatOnlyDamagesIsGivenUpInTime) {
    DamagedScene scene(1, 1, true, 1500 * kMillisecond);
    scene.relay[0]->damage = once_in(1, true);
    ASSERT_TRUE(scene.establish());
    const Outcome outcome = run(scene, 3, 100000);
    EXPECT_FALSE(outcome.complete);
    EXPECT_EQ(outcome.wrong, 0U);
    EXPECT_TRUE(scene.pair.sender->failure() || scene.pair.receiver->failure());
}

}  // namespace
}  // namespace deft::net::testing
