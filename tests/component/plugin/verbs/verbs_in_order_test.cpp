// SPDX-License-Identifier: Apache-2.0
// What a frame carries over a queue pair comes into the receive buffer in the order in which NCCL's
// GPUs look for it, as on TCP's ways (tcp/in_order_test.cpp).

#include "tests/component/plugin/flag_reader.h"
#include "tests/component/plugin/verbs/mixed_pair.h"
#include "tests/sanitizers.h"

namespace deft::net::testing {
namespace {

TEST(VerbsInOrder, AFlagNeverComesBeforeItsLine) {
#ifdef TEST_THREAD_SANITIZER
    GTEST_SKIP() << "two threads at one place on purpose";
#endif
    constexpr std::size_t kBytes = 8192;
    constexpr std::uint64_t kRounds = 3000;
    RdmaPort port = soft_port("near", 2);
    port.interfaces = {"127.0.0.2"};  // so TCP is for fail-over
    MixedPair pair(1, opened({port}), opened({soft_port("far", 3)}));
    ASSERT_TRUE(pair.establish());
    const std::uint64_t before = sent_by("near:1", "roce");
    std::vector<std::uint64_t> data(kBytes / sizeof(std::uint64_t));
    FlagReader gpu(kBytes, kRounds);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
        const Nanos deadline = steady_now() + kPatience;
        std::fill(data.begin(), data.end(), round);
        Request* const receive = pair.receiver->irecv(gpu.data(), kBytes, false, steady_now());
        Request* const send = pair.sender->isend(data.data(), kBytes, steady_now());
        ASSERT_TRUE(receive != nullptr && send != nullptr);
        for (bool sent = false, received = false; !(sent && received);) {
            ASSERT_LT(steady_now(), deadline);
            received = received || pair.receiver->test(receive, steady_now(), nullptr);
            sent = sent || pair.sender->test(send, steady_now(), nullptr);
        }
        ASSERT_TRUE(gpu.wait(round));
    }
    EXPECT_EQ(gpu.early(), 0U);
    EXPECT_GE(sent_by("near:1", "roce") - before, kRounds * kBytes);
}

}  // namespace
}  // namespace deft::net::testing
