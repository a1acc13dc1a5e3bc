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

TEST(LaneConfig, CarriesOverWhatTheJobChooses) {
    ncclConfig_t job = NCCL_CONFIG_INITIALIZER;
    job.blocking = 0;
    job.splitShare = 1;
    job.cgaClusterSize = 2;
    job.minCTAs = 3;
    job.maxCTAs = 9;
    job.trafficClass = 7;
    job.collnetEnable = 0;
    job.CTAPolicy = 1;
    job.nvlsCTAs = 5;
    job.netName = "IB";
    LaneConfig lane;
    lane.job = choices_of(reinterpret_cast<deft_nccl_config_t*>(&job));
    ConfigBytes bytes;
    ncclConfig_t ours;
    const auto make = [&](int version) {
        bytes = {};
        EXPECT_TRUE(make_config(version, lane, bytes));
        std::memcpy(&ours, bytes.bytes, sizeof(ours));
    };
    make(NCCL_VERSION_CODE);
    ncclConfig_t expected = NCCL_CONFIG_INITIALIZER;
    expected.blocking = 1;
    expected.cgaClusterSize = 2;
    expected.minCTAs = 3;
    expected.maxCTAs = 9;
    expected.trafficClass = 7;
    expected.collnetEnable = 0;
    expected.CTAPolicy = 1;
    expected.nvlsCTAs = 5;
    EXPECT_EQ(std::memcmp(&ours, &expected, sizeof(ours)), 0);
    make(22005);  // of that time
    EXPECT_EQ(ours.maxCTAs, 9);
    EXPECT_EQ(ours.trafficClass, NCCL_CONFIG_UNDEF_INT);
    lane.max_ctas = 4;  // what is set for lanes wins
    lane.traffic_class = 0x4c20;
    make(NCCL_VERSION_CODE);
    EXPECT_EQ(ours.minCTAs, 1);
    EXPECT_EQ(ours.maxCTAs, 4);
    EXPECT_EQ(ours.trafficClass, 0x4c20);
    job.version = NCCL_VERSION(2, 25, 1);  // the job was built for it
    EXPECT_EQ(choices_of(reinterpret_cast<deft_nccl_config_t*>(&job)).traffic_class, INT_MIN);
    EXPECT_EQ(choices_of(nullptr), ConfigChoices{});
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

ncclConfig_t read(const ConfigBytes& bytes) {
    ncclConfig_t config;
    std::memcpy(static_cast<void*>(&config), bytes.bytes, sizeof(config));
    return config;
}

// Bit for bit NCCL's defaults but for the name: `blocking` above all stays undefined.
TEST(NameNetwork, WithoutAConfigurationChangesNothingElse) {
    ConfigBytes bytes;
    ASSERT_TRUE(name_network(nullptr, NCCL_VERSION_CODE, "IB", bytes));
    ncclConfig_t ours = read(bytes);
    ncclConfig_t expected = NCCL_CONFIG_INITIALIZER;
    EXPECT_STREQ(ours.netName, "IB");
    EXPECT_EQ(ours.blocking, NCCL_CONFIG_UNDEF_INT);
    ours.netName = expected.netName;
    EXPECT_EQ(std::memcmp(&ours, &expected, sizeof(ours)), 0);
    EXPECT_FALSE(name_network(nullptr, 21602, "IB", bytes)) << "no such field";
}

TEST(NameNetwork, KeepsWhatTheJobWants) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = "own";
    config.splitShare = 1;
    const auto* const given = reinterpret_cast<const deft_nccl_config_t*>(&config);
    EXPECT_EQ(network_of(given), nullptr);
    EXPECT_TRUE(shares(given));
    ConfigBytes bytes;
    ASSERT_TRUE(name_network(given, NCCL_VERSION_CODE, "IB", bytes));
    const ncclConfig_t ours = read(bytes);
    EXPECT_EQ(ours.blocking, 0);
    EXPECT_EQ(ours.splitShare, 1);
    EXPECT_STREQ(ours.commName, "own");
    EXPECT_STREQ(ours.netName, "IB");
    EXPECT_EQ(config.netName, nullptr) << "the job's own stays as it is";
    config.netName = "Socket";
    EXPECT_STREQ(network_of(given), "Socket");
}

// A program built with nccl.h 2.14: the fields behind its structure are not its own.
TEST(NameNetwork, OfAnOlderConfigurationIsTheFirstThatHasTheField) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.size = 24;
    config.version = NCCL_VERSION(2, 14, 3);
    config.blocking = 0;
    config.minCTAs = 99;
    config.netName = "junk";
    const auto* const given = reinterpret_cast<const deft_nccl_config_t*>(&config);
    EXPECT_EQ(network_of(given), nullptr);
    ConfigBytes bytes;
    ASSERT_TRUE(name_network(given, NCCL_VERSION_CODE, "IB", bytes));
    const ncclConfig_t ours = read(bytes);
    EXPECT_EQ(ours.size, 40u);
    EXPECT_EQ(ours.version, static_cast<unsigned>(NCCL_VERSION(2, 17, 0)));
    EXPECT_EQ(ours.blocking, 0);
    EXPECT_EQ(ours.cgaClusterSize, NCCL_CONFIG_UNDEF_INT);
    EXPECT_EQ(ours.minCTAs, NCCL_CONFIG_UNDEF_INT);
    EXPECT_EQ(ours.maxCTAs, NCCL_CONFIG_UNDEF_INT);
    EXPECT_STREQ(ours.netName, "IB");
}

TEST(NameNetwork, LeavesAloneWhatIsNoConfiguration) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.magic = 1;
    const auto* const given = reinterpret_cast<const deft_nccl_config_t*>(&config);
    ConfigBytes bytes;
    EXPECT_FALSE(name_network(given, NCCL_VERSION_CODE, "IB", bytes));
    config.magic = 0xcafebeef;
    config.size = sizeof(bytes.bytes) + 1;
    EXPECT_FALSE(name_network(given, NCCL_VERSION_CODE, "IB", bytes));
}

}  // namespace
}  // namespace deft::executor
