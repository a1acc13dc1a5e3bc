// SPDX-License-Identifier: Apache-2.0
// Bytes come into a receive buffer in the order in which NCCL's GPUs look for them, on every way on
// which the plugin itself copies them there (core/copy_in_order.h).
#include <gtest/gtest.h>

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
    const Nanos deadline = steady_now() + kPatience;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
        std::fill(data.begin(), data.end(), round);
        Request* receive = nullptr;
        if (!early) {
            receive = receiver.irecv(gpu.data(), bytes, false, steady_now());
        }
        Request* const send = sender.isend(data.data(), bytes, steady_now());
        ASSERT_NE(send, nullptr);
        if (early) {
            for (int polls = 0; polls < 20; ++polls) {
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
        gpu.wait(round);
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
