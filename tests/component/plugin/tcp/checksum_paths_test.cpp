// SPDX-License-Identifier: Apache-2.0
// Damaged chunks that two paths bring.
#include <gtest/gtest.h>

#include "tests/component/plugin/tcp/checksum_scene.h"

namespace deft::net::testing {
namespace {

// A path stands still in the middle of a chunk, which another one then begins. What the first
// brings later, damaged, must not stay in the place of what the second has stored already: the
// second's checksum, taken of what it read, is right.
TEST(Checksum, AChunkThatTwoPathsBringIsWhatWasSent) {
    DamagedScene scene(2, 2, true);
    ASSERT_TRUE(scene.establish());
    ASSERT_TRUE(run(scene, 40, 400000).complete);  // both paths are trusted
    constexpr long kUnlimited = 1L << 40;
    long pieces[2] = {1, kUnlimited};  // that each relay passes on to the receiver
    bool flip = false;
    for (std::size_t i = 0; i < 2; ++i) {
        scene.relay[i]->hold = [&pieces, i](bool to_receiver) {
            return to_receiver && pieces[i] == 0;
        };
        scene.relay[i]->damage = [&, i](bool to_receiver, std::uint64_t, std::size_t size) -> long {
            pieces[i] -= to_receiver ? 1 : 0;
            const bool now = to_receiver && i == 0 && flip;
            flip = flip && !now;
            return now ? static_cast<long>(size) / 2 : -1;
        };
    }
    const std::vector<std::byte> data = bytes_of(16 << 20, 1);
    std::vector<std::byte> buffer(data.size());
    Request* receive =
        scene.pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now());
    Request* send = scene.pair.sender->isend(data.data(), data.size(), steady_now());
    ASSERT_TRUE(receive != nullptr && send != nullptr);
    const std::uint64_t before = resent();
    const Nanos deadline = steady_now() + kPatience;
    bool sent = false;
    bool received = false;
    Nanos next = 0;
    int stage = 0;
    while (!(sent && received) && steady_now() < deadline) {
        scene.step();
        if (!sent) {
            sent = scene.pair.sender->test(send, steady_now(), nullptr);
        }
        if (!received) {
            received = scene.pair.receiver->test(receive, steady_now(), nullptr);
        }
        if (stage == 0 && resent() != before) {
            pieces[1] = 3;  // of 64 KiB each, where the chunk has 256
            stage = 1;
        } else if (stage == 1 && pieces[1] == 0) {
            flip = true;
            pieces[0] = 1;
            stage = 2;
        } else if (stage == 2 && pieces[0] == 0) {
            next = steady_now() + 20 * kMillisecond;
            stage = 3;
        } else if (stage == 3 && steady_now() > next) {
            pieces[0] = pieces[1] = kUnlimited;
            stage = 4;
        }
    }
    EXPECT_EQ(stage, 4);
    EXPECT_EQ(scene.flips(), 1U);
    ASSERT_TRUE(sent && received);
    EXPECT_TRUE(data == buffer);
}

// The path that was overtaken is only slow: what it brings goes nowhere, and it lives on. (Ending
// it would make the sender repeat what the other path is bringing, which would end that one.)
TEST(Checksum, APathThatIsOvertakenLivesOn) {
    DamagedScene scene(2, 2, true);
    ASSERT_TRUE(scene.establish());
    ASSERT_TRUE(run(scene, 40, 400000).complete);  // both paths are trusted
    constexpr long kUnlimited = 1L << 40;
    long pieces[2] = {kUnlimited, kUnlimited};  // that each relay passes on to the receiver
    for (std::size_t i = 0; i < 2; ++i) {
        scene.relay[i]->hold = [&pieces, i](bool to_receiver) {
            return to_receiver && pieces[i] == 0;
        };
        scene.relay[i]->damage = [&pieces, i](bool to_receiver, std::uint64_t,
                                              std::size_t) -> long {
            pieces[i] -= to_receiver ? 1 : 0;
            return -1;
        };
    }
    ASSERT_TRUE(run(scene, 20, 4 << 20).complete);  // now the rates are known
    pieces[0] = 1;
    const std::vector<std::byte> data = bytes_of(4 << 20, 1);
    std::vector<std::byte> buffer(data.size());
    Request* receive =
        scene.pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now());
    Request* send = scene.pair.sender->isend(data.data(), data.size(), steady_now());
    ASSERT_TRUE(receive != nullptr && send != nullptr);
    const std::uint64_t before = resent();
    const std::uint64_t changes = sum_of(&LinkCounters::transitions);
    const Nanos deadline = steady_now() + kPatience;
    bool sent = false;
    bool received = false;
    Nanos next = 0;
    int stage = 0;
    while (!(sent && received && pieces[0] == kUnlimited) && steady_now() < deadline) {
        scene.step();
        if (!sent) {
            sent = scene.pair.sender->test(send, steady_now(), nullptr);
        }
        if (!received) {
            received = scene.pair.receiver->test(receive, steady_now(), nullptr);
        }
        scene.pair.sender->progress(steady_now());
        scene.pair.receiver->progress(steady_now());
        if (stage == 0 && resent() != before) {
            pieces[1] = 3;  // of 64 KiB each, where the chunk has 256
            stage = 1;
        } else if (stage == 1 && pieces[1] == 0) {
            pieces[0] = 1;
            stage = 2;
        } else if (stage == 2 && pieces[0] == 0) {
            next = steady_now() + 20 * kMillisecond;
            stage = 3;
        } else if (stage == 3 && steady_now() > next) {
            pieces[1] = kUnlimited;
            stage = 4;
        } else if (stage == 4 && received) {
            pieces[0] = kUnlimited;
        }
    }
    ASSERT_TRUE(sent && received);
    EXPECT_TRUE(data == buffer);
    for (const Nanos end = steady_now() + 50 * kMillisecond; steady_now() < end;) {
        scene.step();
        scene.pair.sender->progress(steady_now());
        scene.pair.receiver->progress(steady_now());
    }
    EXPECT_EQ(sum_of(&LinkCounters::transitions), changes);
    for (const std::size_t path : {0, 1}) {
        EXPECT_EQ(scene.pair.sender->state(path), PathState::Up);
        EXPECT_EQ(scene.pair.receiver->state(path), PathState::Up);
    }
}

}  // namespace
}  // namespace deft::net::testing
