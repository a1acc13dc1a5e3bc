// SPDX-License-Identifier: Apache-2.0
// Which ports a process drives while links come up.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "plugin/verbs/ports.h"
#include "tests/unit/topology/sysfs_tree.h"

namespace deft::net::testing {
namespace {

class VerbsPortsOfAProcess : public ::testing::Test {
protected:
    void add(const char* device, int host, const char* state) {
        test::SysfsTree::Port port;
        port.layer = "Ethernet";
        port.state = state;
        port.gid = "fe80:0000:0000:0000:0000:0000:0000:0001";
        port.interface = "lo";
        tree_.port(device, 1, port);
        tree_.gid(device, 1, 3, "0000:0000:0000:0000:0000:ffff:7f00:000" + std::to_string(host),
                  "lo");
        tree_.put(std::string(device) + "/ports/1/gid_attrs/types/0", "IB/RoCE v1");
        tree_.put(std::string(device) + "/ports/1/gid_attrs/types/3", "RoCE v2");
    }
    void set_state(const char* device, const char* state) {
        tree_.put(std::string(device) + "/ports/1/state", state);
    }
    DrivenPorts ports() { return DrivenPorts(choose_rdma(tree_.root(), true), tree_.root()); }
    // Those that there are once there are so many: they are opened on another thread.
    static VerbsPorts later(DrivenPorts& driven, std::size_t wanted) {
        VerbsPorts ports = driven.now();
        for (const Nanos end = steady_now() + 20 * kSecond;
             ports.size() < wanted && steady_now() < end; ports = driven.now()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return ports;
    }

    test::SysfsTree tree_;
};

TEST_F(VerbsPortsOfAProcess, AreJoinedByOneWhoseLinkComesUp) {
    add("near", 2, "4: ACTIVE");
    add("second", 4, "1: DOWN");
    DrivenPorts driven = ports();
    ASSERT_EQ(driven.first().size(), 1U);
    const auto first = driven.first()[0];
    EXPECT_EQ(driven.now().size(), 1U);
    set_state("second", "4: ACTIVE");
    const VerbsPorts both = later(driven, 2);
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(both[0], first);
    EXPECT_EQ(both[1]->name, "second:1");
    EXPECT_EQ(later(driven, 2)[1], both[1]);
    EXPECT_EQ(driven.first().size(), 1U) << "NCCL was told so";
    // What is in use stays, whatever its state: its connections look after it.
    set_state("near", "1: DOWN");
    EXPECT_EQ(driven.now().size(), 2U);
}

TEST_F(VerbsPortsOfAProcess, MayAllComeLater) {
    add("near", 2, "1: DOWN");
    add("second", 4, "1: DOWN");
    DrivenPorts driven = ports();
    EXPECT_TRUE(driven.first().empty());
    EXPECT_TRUE(driven.now().empty());
    set_state("second", "4: ACTIVE");
    ASSERT_EQ(later(driven, 1).size(), 1U);
    set_state("near", "4: ACTIVE");
    ASSERT_EQ(later(driven, 2).size(), 2U);
}

// Two ports of one card are in one domain, so that memory is registered once.
TEST_F(VerbsPortsOfAProcess, ShareWhatTheirDeviceHasOpen) {
    add("near", 2, "4: ACTIVE");
    tree_.put("near/ports/2/link_layer", "Ethernet");
    tree_.put("near/ports/2/state", "1: DOWN");
    tree_.put("near/ports/2/gids/3", "0000:0000:0000:0000:0000:ffff:7f00:0005");
    tree_.put("near/ports/2/gid_attrs/ndevs/3", "lo");
    tree_.put("near/ports/2/gid_attrs/types/3", "RoCE v2");
    DrivenPorts driven = ports();
    ASSERT_EQ(driven.first().size(), 1U);
    tree_.put("near/ports/2/state", "4: ACTIVE");
    const VerbsPorts both = later(driven, 2);
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(both[1]->name, "near:2");
    EXPECT_EQ(both[0]->domain, both[1]->domain);
}

}  // namespace
}  // namespace deft::net::testing
