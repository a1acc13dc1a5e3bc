// SPDX-License-Identifier: Apache-2.0
// The ports that connections of this process drive next to the links of their devices, of every
// kind. Any thread.
#pragma once

#include "plugin/core/port.h"

namespace deft::net {

// Those that there have been from the beginning, which NCCL is told of; opened at the first call,
// which takes milliseconds, then constant.
Ports first_ports();
// Those for a connection that is made now.
Ports ports_now();

}  // namespace deft::net
