// SPDX-License-Identifier: Apache-2.0
#include "shim/control/kill_switch.h"

#include <unistd.h>

#include "base/config.h"

namespace deft::director {

KillSwitch& KillSwitch::process() noexcept {
    static constinit KillSwitch kill_switch;
    return kill_switch;
}

void KillSwitch::look() noexcept {
    const char* found = nullptr;
    try {
        for (const char* const file : {kKillFile, Config::process().text(Key::KillFile).c_str()}) {
            if (found == nullptr && *file != '\0' && ::access(file, F_OK) == 0) {
                found = file;
            }
        }
    } catch (...) {
        return;  // no memory for the configuration: what was known holds
    }
    pulled_.store(found, std::memory_order_release);
}

}  // namespace deft::director
