// SPDX-License-Identifier: Apache-2.0
// UCX's transport over TCP, on the loopback interface.
#include <gtest/gtest.h>

#include <cstdlib>

#include "plugin/ucx/library.h"
#include "plugin/ucx/ports.h"
#include "tests/component/plugin/conformance/port_scene.h"

namespace deft::net::testing {
namespace {

std::unique_ptr<LinkScene> make(std::string& reason) {
    const deft_ucx_module_t* const module = process_ucx_module(reason);
    if (module == nullptr) {
        EXPECT_EQ(std::getenv("DEFT_TEST_UCX"), nullptr) << "the module was built: " << reason;
        return nullptr;
    }
    const UcxPorts near = open_ucx_ports(*module, "lo", {}, {}, reason);
    const UcxPorts far = open_ucx_ports(*module, "lo", {}, {}, reason);
    if (!reason.empty()) {
        ADD_FAILURE() << reason;
        return nullptr;
    }
    return PortScene::make(near[0], far[0], reason);
}

}  // namespace

const LinkKind kUcxKind = {"Ucx", make};

}  // namespace deft::net::testing
