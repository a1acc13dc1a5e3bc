// SPDX-License-Identifier: Apache-2.0
// UCX devices on the loopback interface, whose TCP transport is all that they need. They live as
// long as the process, as the plugin's own do (UcxDevice).
#pragma once

#include <array>
#include <string>

#include "plugin/ucx/library.h"
#include "plugin/ucx/ports.h"

namespace deft::net::testing {

// Three, for the two ends of a connection and one more. Empty, and the cause, where the module is
// not here.
struct UcxLoopback {
    std::array<UcxPorts, 3> ports;
    std::string problem;

    static const UcxLoopback& process() {
        static const UcxLoopback& made = *new UcxLoopback(open());
        return made;
    }

private:
    static UcxLoopback open() {
        UcxLoopback made;
        const deft_ucx_module_t* const module = process_ucx_module(made.problem);
        if (module != nullptr) {
            for (UcxPorts& ports : made.ports) {
                ports = open_ucx_ports(*module, "lo", {}, {}, made.problem);
            }
        }
        return made;
    }
};

}  // namespace deft::net::testing
