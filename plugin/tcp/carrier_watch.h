// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "plugin/core/path.h"

namespace deft::net {

// What happens to the carriers and addresses of this host's interfaces, from the kernel's own
// events (rtnetlink(7)).
class CarrierWatch {
public:
    // How often the interface of this name has lost its carrier (or was set down, or removed) and
    // got it, or an address, back since the process first asked. Looks for news at most every two
    // milliseconds. Any thread; does not block.
    static Carrier of(const std::string& name);
    // True if it had no carrier when last heard of. The kernel may report one up to a second late:
    // good for not waiting, not for giving up.
    static bool down(const std::string& name);
};

}  // namespace deft::net
