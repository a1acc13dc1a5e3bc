// SPDX-License-Identifier: Apache-2.0
// Messages of 8 to 64 KiB that are alone on a single TCP path: whose memory is theirs when, and
// where their bytes go when they come before their receive.
#include <gtest/gtest.h>

#include "tests/component/plugin/relayed_pair.h"

namespace deft::net::testing {
namespace {

using Bytes = std::vector<std::byte>;

// The kernel must not look at the job's memory any more.
TEST(LoneSends, MemoryIsTheJobsAgainWhenTheyAreDone) {
    for (const std::size_t size : {std::size_t{10'000}, std::size_t{40'000}, kLoneBytes}) {
        ConnectionOptions options;
        options.zerocopy = "on";
        TcpPair pair(1, 30 * kSecond, options);
        ASSERT_TRUE(pair.establish());
        Bytes data = bytes_of(size, 1);
        Request* const send = pair.sender->isend(data.data(), data.size(), steady_now());
        ASSERT_NE(send, nullptr);
        const Nanos deadline = steady_now() + kPatience;
        while (!pair.sender->test(send, steady_now(), nullptr) && steady_now() < deadline) {
        }
        std::fill(data.begin(), data.end(), std::byte{0xee});
        Bytes buffer(size);
        Request* const receive =
            pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now());
        ASSERT_NE(receive, nullptr);
        while (!pair.receiver->test(receive, steady_now(), nullptr) && steady_now() < deadline) {
        }
        EXPECT_TRUE(buffer == bytes_of(size, 1)) << size;
    }
}

// Its receive is posted when a part of it is here.
TEST(LoneSends, AreWholeWhereTheirReceiveComesInBetween) {
    RelayedPair scene(1, 1);
    ASSERT_TRUE(scene.establish());
    Receiver& receiver = *scene.pair.receiver;
    for (unsigned round = 0; round < 20; ++round) {
        const Bytes data = bytes_of(kLoneBytes, round);
        Bytes buffer(kLoneBytes);
        int pieces = 1;  // of 64 KiB at most, so that the last bytes are another
        scene.relay[0]->hold = [&](bool to_receiver) { return to_receiver && pieces == 0; };
        scene.relay[0]->damage = [&](bool to_receiver, std::uint64_t, std::size_t) -> long {
            pieces -= to_receiver ? 1 : 0;
            return -1;
        };
        Request* const send = scene.pair.sender->isend(data.data(), data.size(), steady_now());
        ASSERT_NE(send, nullptr);
        const Nanos deadline = steady_now() + kPatience;
        while (pieces > 0 && steady_now() < deadline) {
            scene.pair.sender->progress(steady_now());
            scene.step();
        }
        for (int i = 0; i < 50; ++i) {
            scene.step();
            receiver.progress(steady_now());
        }
        Request* const receive = receiver.irecv(buffer.data(), buffer.size(), false, steady_now());
        ASSERT_NE(receive, nullptr);
        EXPECT_FALSE(receiver.test(receive, steady_now(), nullptr));
        pieces = 1 << 20;
        bool sent = false;
        bool received = false;
        while (!(sent && received) && steady_now() < deadline) {
            scene.step();
            if (!sent) {
                sent = scene.pair.sender->test(send, steady_now(), nullptr);
            }
            if (!received) {
                received = receiver.test(receive, steady_now(), nullptr);
            }
        }
        ASSERT_TRUE(sent && received);
        EXPECT_TRUE(buffer == data) << round;
    }
}

}  // namespace
}  // namespace deft::net::testing
