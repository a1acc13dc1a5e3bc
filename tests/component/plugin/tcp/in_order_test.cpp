// SPDX-License-Identifier: Apache-2.0
// Bytes come into a receive buffer in the order in which NCCL's GPUs look for them, on every way on
// which the plugin itself copies them there (core/copy_in_order.h).
#include <gtest/gtest.h>

#include "base/link_stats.h"
#include "tests/component/plugin/flag_reader.h"
#include "tests/component/plugin/tcp_pair.h"
#include "tests/sanitizers.h"

namespace deft::net::testing {
namespace {

struct Way {
    const char* name;
    std::size_t bytes;
    bool early;  // it comes before its receive is posted
    bool checksum;
};

std::uint64_t received_bytes() {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < LinkStats::process().size(); ++i) {
        sum += LinkStats::process()[i].bytes_received.load();
    }
    return sum;
}

class InOrder : public ::testing::TestWithParam<Way> {};

TEST_P(InOrder, AFlagNeverComesBeforeItsLine) {
#ifdef TEST_THREAD_SANITIZER
    GTEST_SKIP() << "two threads at one place on purpose";
#endif
    const auto& [name, bytes, early, checksum] = GetParam();
    constexpr std::uint64_t kRounds = 1000;
    ConnectionOptions options;
    options.checksum = checksum;
    TcpPair pair(1, 30 * kSecond, options);
    ASSERT_TRUE(pair.establish());
    Sender& sender = *pair.sender;
    Receiver& receiver = *pair.receiver;
    std::vector<std::uint64_t> data(bytes / sizeof(std::uint64_t));
    FlagReader gpu(bytes, kRounds);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
        const Nanos deadline = steady_now() + kPatience;
        std::fill(data.begin(), data.end(), round);
        const std::uint64_t before = received_bytes();
        Request* receive = nullptr;
        if (!early) {
            receive = receiver.irecv(gpu.data(), bytes, false, steady_now());
        }
        Request* const send = sender.isend(data.data(), bytes, steady_now());
        ASSERT_NE(send, nullptr);
        if (early) {
            // What is counted has been read, and nothing is posted that it could have gone to.
            while (received_bytes() < before + bytes) {
                ASSERT_LT(steady_now(), deadline);
                sender.progress(steady_now());
                receiver.progress(steady_now());
            }
            receive = receiver.irecv(gpu.data(), bytes, false, steady_now());
        }
        ASSERT_NE(receive, nullptr);
        bool sent = false;
        bool received = false;
        while (!(sent && received)) {
            ASSERT_LT(steady_now(), deadline);
            received = received || receiver.test(receive, steady_now(), nullptr);
            sent = sent || sender.test(send, steady_now(), nullptr);
        }
        ASSERT_TRUE(gpu.wait(round));
    }
    EXPECT_EQ(gpu.early(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Ways, InOrder,
                         ::testing::Values(Way{"staged", 32768, false, false},
                                           Way{"early", 65536, true, false},
                                           Way{"verified", 65536, false, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace deft::net::testing
