// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "softdev/net/interfaces.h"
#include "softdev/net/plugin_names.h"

namespace softdev::net {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> names(const char* value, int version = kDefaultNcclVersion) {
    std::vector<std::string> remarks;
    return plugin_names(value, version, &remarks);
}

TEST(AbiVersions, FollowTheRelease) {
    EXPECT_THAT(abi_versions(21304), ElementsAre(6));
    EXPECT_THAT(abi_versions(21806), ElementsAre(6));
    EXPECT_THAT(abi_versions(21903), ElementsAre(7, 6));
    EXPECT_THAT(abi_versions(22005), ElementsAre(8, 7, 6));
    EXPECT_THAT(abi_versions(22304), ElementsAre(8, 7, 6));
    EXPECT_THAT(abi_versions(22403), ElementsAre(9, 8, 7, 6));
    EXPECT_THAT(abi_versions(22501), ElementsAre(9, 8, 7, 6));
    EXPECT_THAT(abi_versions(22602), ElementsAre(10, 9, 8, 7, 6));
    EXPECT_THAT(abi_versions(22705), ElementsAre(10, 9, 8, 7, 6));
    EXPECT_THAT(abi_versions(22809), ElementsAre(11, 10, 9, 8, 7, 6));
    EXPECT_THAT(abi_versions(22907), ElementsAre(11, 10, 9, 8, 7, 6));
    EXPECT_THAT(abi_versions(23007), ElementsAre(12, 11, 10, 9, 8, 7, 6));
}

TEST(NcclVersion, IsChecked) {
    std::string error;
    EXPECT_EQ(parse_nccl_version("22809", &error), 22809);
    EXPECT_EQ(parse_nccl_version("2.28", &error), 0);
    EXPECT_THAT(error, HasSubstr("SOFTDEV_NCCL_VERSION=2.28"));
    EXPECT_EQ(parse_nccl_version("", &error), 0);
    EXPECT_EQ(parse_nccl_version("21200", &error), 0);
    EXPECT_EQ(parse_nccl_version("30000", &error), 0);
}

TEST(PluginNames, UnsetEmptyNone) {
    EXPECT_THAT(names(nullptr), ElementsAre("libnccl-net.so"));
    EXPECT_THAT(names(""), IsEmpty());
    EXPECT_THAT(names("none"), IsEmpty());
    EXPECT_THAT(names("NONE"), IsEmpty());
    EXPECT_THAT(names("none", 22705), ElementsAre("none"));  // no meaning before 2.28
}

TEST(PluginNames, ListsSince227) {
    EXPECT_THAT(names("a,b,,c"), ElementsAre("a", "b", "c"));
    EXPECT_THAT(names("a,b", 22705), ElementsAre("a", "b"));
    EXPECT_THAT(names("a,b", 22602), ElementsAre("a,b"));
}

TEST(PluginNames, AtMostFourteenAndNotTooLong) {
    std::string list;
    for (int i = 0; i < 16; ++i) {
        list += "p" + std::to_string(i) + ",";
    }
    std::vector<std::string> remarks;
    EXPECT_EQ(plugin_names(list.c_str(), kDefaultNcclVersion, &remarks).size(), 14u);
    EXPECT_THAT(remarks, ElementsAre(HasSubstr("p14"), HasSubstr("p15")));
    remarks.clear();
    const std::string too_long = std::string(255, 'x') + ",y";
    EXPECT_THAT(plugin_names(too_long.c_str(), kDefaultNcclVersion, &remarks), ElementsAre("y"));
    EXPECT_THAT(remarks, ElementsAre(HasSubstr("255")));
    EXPECT_EQ(names(std::string(254, 'x').c_str()).size(), 1u);
}

TEST(Candidates, LiteralThenDerived) {
    EXPECT_THAT(dlopen_candidates("deft", 22809), ElementsAre("deft", "libnccl-net-deft.so"));
    EXPECT_THAT(dlopen_candidates("/x/p.so", 22809), ElementsAre("/x/p.so"));
    EXPECT_THAT(dlopen_candidates("x/deft", 22809), ElementsAre("x/deft"));
    EXPECT_THAT(dlopen_candidates("libfoo.so", 22809), ElementsAre("libfoo.so"));
    EXPECT_THAT(dlopen_candidates("libfoo", 22809), ElementsAre("libfoo", "libnccl-net-libfoo.so"));
    EXPECT_THAT(dlopen_candidates("deft", 22103), ElementsAre("deft", "libnccl-net-deft.so"));
    EXPECT_THAT(dlopen_candidates("deft", 22005), ElementsAre("libnccl-net-deft.so"));
    EXPECT_THAT(dlopen_candidates("libnccl-net.so", 22005), ElementsAre("libnccl-net.so"));
}

TEST(StaticPlugin, EveryPrefixMeansIt) {
    EXPECT_TRUE(means_static_plugin("STATIC_PLUGIN", 22809));
    EXPECT_TRUE(means_static_plugin("s", 22809));
    EXPECT_TRUE(means_static_plugin("static", 22809));
    EXPECT_FALSE(means_static_plugin("STATIC_PLUGIN2", 22809));
    EXPECT_FALSE(means_static_plugin("deft", 22809));
    EXPECT_FALSE(means_static_plugin("STATIC_PLUGIN", 22206));
}

TEST(InterfaceList, PrefixExactExcept) {
    EXPECT_TRUE(selects("eth", "eth0"));
    EXPECT_TRUE(selects("ib,eth", "eth0"));
    EXPECT_FALSE(selects("eth1", "eth0"));
    EXPECT_TRUE(selects("=eth0", "eth0"));
    EXPECT_FALSE(selects("=eth", "eth0"));
    EXPECT_TRUE(selects("=a,eth0", "eth0"));
    EXPECT_FALSE(selects("^eth", "eth0"));
    EXPECT_TRUE(selects("^docker,lo", "eth0"));
    EXPECT_FALSE(selects("^docker,lo", "lo"));
    EXPECT_TRUE(selects("^=eth", "eth0"));
    EXPECT_FALSE(selects("^=eth0", "eth0"));
    EXPECT_TRUE(selects("eth0:4000", "eth0"));
    EXPECT_FALSE(selects("", "eth0"));
    EXPECT_FALSE(selects(",", "eth0"));
}

}  // namespace
}  // namespace softdev::net
