// SPDX-License-Identifier: Apache-2.0
// A job on hosts whose releases are two apart: NCCL gets an error at once, and one line names both
// sides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "deft/abi/net.h"
#include "plugin/tcp/device.h"
#include "plugin/tcp/wire.h"
#include "tests/component/plugin/tcp_pair.h"

extern "C" const deft_net_v8_t ncclNetPlugin_v8;

namespace deft::net::testing {
namespace {

using ::testing::HasSubstr;

class FarRelease : public ::testing::Test {
protected:
    void SetUp() override {
        set_process_device(loopback_device(1));
        ASSERT_EQ(ncclNetPlugin_v8.init(nullptr), 0);
        ASSERT_EQ(ncclNetPlugin_v8.listen(0, handle_.data(), &listener_), 0);
    }
    void TearDown() override {
        EXPECT_EQ(ncclNetPlugin_v8.closeListen(listener_), 0);
        set_process_device(nullptr);
    }

    // What connecting to the handle says on standard error.
    std::string refused(int with) {
        ::testing::internal::CaptureStderr();
        void* comm = nullptr;
        deft_net_device_handle_t* device = nullptr;
        EXPECT_EQ(ncclNetPlugin_v8.connect(0, handle_.data(), &comm, &device), with);
        EXPECT_EQ(comm, nullptr);
        const std::string said = ::testing::internal::GetCapturedStderr();
        EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
        return said;
    }

    std::array<std::byte, wire::kHandleBytes> handle_{};
    void* listener_ = nullptr;
};

TEST_F(FarRelease, TwoReleasesOnIsRefusedWithOneLine) {
    wire::Handle handle;
    ASSERT_EQ(wire::decode(handle_, handle), wire::Decoded::Ok);
    handle.version = wire::kVersion + 1;
    handle.newest = wire::kVersion + 2;
    wire::encode(handle, handle_);
    EXPECT_THAT(refused(DEFT_NET_INVALID_USAGE),
                HasSubstr("the peer's deft speaks protocol versions 4 to 5, this one 2 to 3: "
                          "install the same release on all hosts"));
}

TEST_F(FarRelease, AnotherPluginsHandleIsRefusedWithOneLine) {
    std::memset(handle_.data(), 0x41, handle_.size());
    EXPECT_THAT(refused(DEFT_NET_INVALID_USAGE), HasSubstr("load the same network plugin on all"));
}

}  // namespace
}  // namespace deft::net::testing
