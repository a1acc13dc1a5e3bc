// SPDX-License-Identifier: Apache-2.0
// Our bytes of ncclConfig_t against the vendor's header.
#include "shim/executor/lane_config.h"

#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>

namespace deft::executor {
namespace {

TEST(LaneConfig, IsTheVendorsStructure) {
    static_assert(sizeof(ncclConfig_t) <= sizeof(ConfigBytes));
    LaneConfig lane;
    lane.traffic_class = 0x4c01;
    lane.net_name = "deft";
    lane.max_ctas = 2;
    ConfigBytes bytes;
    ASSERT_TRUE(make_config(NCCL_VERSION_CODE, lane, bytes));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.trafficClass = 0x4c01;
    config.netName = "deft";
    config.minCTAs = 1;
    config.maxCTAs = 2;
    ncclConfig_t ours;
    std::memcpy(&ours, bytes.bytes, sizeof(ours));
    EXPECT_STREQ(ours.netName, config.netName);
    ours.netName = config.netName;
    EXPECT_EQ(std::memcmp(&ours, &config, sizeof(ours)), 0);
}

TEST(LaneConfig, LeavesOutWhatAnOlderLibraryDoesNotKnow) {
    LaneConfig lane;
    lane.traffic_class = 5;
    lane.net_name = "IB";
    ConfigBytes bytes;
    EXPECT_FALSE(make_config(21304, lane, bytes));
    const auto size = [&](int version) {
        bytes = {};
        EXPECT_TRUE(make_config(version, lane, bytes));
        std::size_t value = 0;
        std::memcpy(&value, bytes.bytes, sizeof(value));
        for (std::size_t at = value; at < sizeof(bytes.bytes); ++at) {
            EXPECT_EQ(bytes.bytes[at], 0) << version << " writes beyond its structure";
        }
        return value;
    };
    EXPECT_EQ(size(21403), 24U);
    EXPECT_EQ(size(21701), 40U);
    EXPECT_EQ(size(22005), 48U);
    EXPECT_EQ(size(22602), 48U);
    EXPECT_EQ(size(22703), 72U);
    EXPECT_EQ(size(22809), 80U);
    int traffic_class = 0;
    ASSERT_TRUE(make_config(22005, lane, bytes));
    std::memcpy(&traffic_class, bytes.bytes + 44, 4);
    EXPECT_EQ(traffic_class, INT_MIN);  // before 2.26 it is padding
}

}  // namespace
}  // namespace deft::executor
