// SPDX-License-Identifier: Apache-2.0
// Queue pairs of the software verbs device.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/component/plugin/conformance/port_scene.h"
#include "tests/component/plugin/verbs/soft_ports.h"

namespace deft::net::testing {
namespace {

std::unique_ptr<LinkScene> make(std::string& reason) {
    const VerbsPorts ports = open_soft_ports({soft_port("near", 2), soft_port("far", 3)}, reason);
    if (ports.size() != 2) {
        EXPECT_EQ(std::getenv("SOFTDEV_VERBS"), nullptr) << "the device is here, and unused";
        return nullptr;
    }
    return PortScene::make(ports[0], ports[1], reason);
}

}  // namespace

const LinkKind kVerbsKind = {"Verbs", make};

}  // namespace deft::net::testing
