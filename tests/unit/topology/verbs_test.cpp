// SPDX-License-Identifier: Apache-2.0
// What libibverbs can drive, and what it comes to for the job: a stand-in takes the library's
// place.
#include "topology/verbs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/unit/topology/sysfs_tree.h"
#include "topology/rdma.h"

namespace deft {
namespace {

using test::SysfsTree;
using testing::HasSubstr;
using testing::StartsWith;

class Verbs : public testing::Test {
protected:
    ~Verbs() override {
        ::unsetenv("FAKE_VERBS");
        ::unsetenv("NCCL_IBVERBS_LIB");
    }
    // The library drives these and the tree shows mlx5_0.
    static RdmaChoice choice_with(const char* devices) {
        ::setenv("FAKE_VERBS", devices, 1);
        ::setenv("NCCL_IBVERBS_LIB", FAKE_VERBS_LIB, 1);
        SysfsTree tree;
        tree.port("mlx5_0", 1);
        return choose_rdma(tree.root(), false);
    }
};

TEST_F(Verbs, ListsWhatOpens) {
    ::setenv("FAKE_VERBS", "mlx5_0 mlx5_1!", 1);
    const auto devices = list_verbs_devices(FAKE_VERBS_LIB);
    ASSERT_TRUE(devices);
    ASSERT_EQ(devices->size(), 2u);
    EXPECT_EQ(devices->at(0).name, "mlx5_0");
    EXPECT_TRUE(devices->at(0).opens);
    EXPECT_EQ(devices->at(1).name, "mlx5_1");
    EXPECT_FALSE(devices->at(1).opens);
}

TEST_F(Verbs, ALibraryWithoutDevicesIsOneThatDrivesNone) {
    const auto devices = list_verbs_devices(FAKE_VERBS_LIB);
    ASSERT_TRUE(devices);
    EXPECT_TRUE(devices->empty());
}

// NCCL looks the functions up in the versions of the real library.
TEST_F(Verbs, ALibraryOfAnotherKindIsNone) {
    EXPECT_FALSE(list_verbs_devices("libc.so.6"));
}

TEST_F(Verbs, ADeviceThatOpensCarriesTheJob) {
    EXPECT_EQ(choice_with("mlx5_0").use, RdmaUse::Aside);
}

// A container that has libibverbs, but not the vendor's library.
TEST_F(Verbs, WithoutAProviderNothingIsLeftToIb) {
    for (const char* const devices : {"", "irdma0"}) {
        const RdmaChoice choice = choice_with(devices);
        EXPECT_EQ(choice.use, RdmaUse::None);
        ASSERT_EQ(choice.ports.size(), 1u);
        EXPECT_THAT(choice.ports[0].obstacle, StartsWith("libibverbs has no provider for it"));
    }
}

TEST_F(Verbs, ADeviceThatDoesNotOpenIsNotLeftToIb) {
    const RdmaChoice choice = choice_with("mlx5_0!");
    EXPECT_EQ(choice.use, RdmaUse::None);
    EXPECT_THAT(choice.ports.at(0).obstacle, HasSubstr("cannot open it"));
}

}  // namespace
}  // namespace deft
