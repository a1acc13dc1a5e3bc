// SPDX-License-Identifier: Apache-2.0
// UCX's transport over TCP, on the loopback interface.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/component/plugin/conformance/port_scene.h"
#include "tests/component/plugin/ucx/loopback.h"

namespace deft::net::testing {
namespace {

std::unique_ptr<LinkScene> make(std::string& reason) {
    const UcxLoopback& loopback = UcxLoopback::process();
    reason = loopback.problem;
    if (!reason.empty()) {
        EXPECT_EQ(std::getenv("DEFT_TEST_UCX"), nullptr) << "the module was built: " << reason;
        return nullptr;
    }
    return PortScene::make(loopback.ports[0].at(0), loopback.ports[1].at(0), reason);
}

}  // namespace

const LinkKind kUcxKind = {"Ucx", make};

}  // namespace deft::net::testing
