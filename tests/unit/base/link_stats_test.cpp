// SPDX-License-Identifier: Apache-2.0
#include "base/link_stats.h"

#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace deft {
namespace {

TEST(LinkStats, ALinkKeepsItsSlot) {
    auto stats = std::make_unique<LinkStats>();
    LinkCounters& eth0 = stats->link("eth0", "tcp");
    EXPECT_EQ(&stats->link("eth0", "tcp"), &eth0);
    EXPECT_NE(&stats->link("eth0", "ucx"), &eth0);
    EXPECT_NE(&stats->link("eth1", "tcp"), &eth0);
    EXPECT_EQ(stats->size(), 3u);
    EXPECT_STREQ((*stats)[0].name, "eth0");
}

TEST(LinkStats, ALongNameIsCutAndFoundAgain) {
    auto stats = std::make_unique<LinkStats>();
    const std::string name(200, 'n');
    EXPECT_EQ(&stats->link(name.c_str(), "tcp"), &stats->link(name.c_str(), "tcp"));
    EXPECT_EQ(stats->size(), 1u);
}

TEST(LinkStats, AFullTableSharesOneSlot) {
    auto stats = std::make_unique<LinkStats>();
    for (std::size_t i = 0; i < LinkStats::kMaxLinks; ++i) {
        stats->link(std::to_string(i).c_str(), "tcp");
    }
    LinkCounters& other = stats->link("one", "tcp");
    EXPECT_STREQ(other.name, "other");
    EXPECT_EQ(&stats->link("two", "tcp"), &other);
    EXPECT_EQ(stats->size(), LinkStats::kMaxLinks);
}

TEST(LinkStats, ThreadsAgreeOnTheSlot) {
    auto stats = std::make_unique<LinkStats>();
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 32; ++i) {
                stats->link(std::to_string(i).c_str(), "tcp").bytes_sent += 1;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    ASSERT_EQ(stats->size(), 32u);
    for (std::size_t i = 0; i < 32; ++i) {
        EXPECT_EQ((*stats)[i].bytes_sent, 8u);
    }
}

}  // namespace
}  // namespace deft
