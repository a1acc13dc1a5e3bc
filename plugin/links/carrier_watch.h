// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace deft::net {

// Whether interfaces of this host have a carrier, from the kernel's own events (rtnetlink(7)).
class CarrierWatch {
public:
    // False once the kernel has said that the interface of this name lost its carrier, was set down
    // or was removed, until it says otherwise. Looks for news at most every two milliseconds. Any
    // thread; does not block.
    static bool up(const std::string& name);
};

}  // namespace deft::net
