// SPDX-License-Identifier: Apache-2.0
// Which ports go with which device, and what NCCL is told of both. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/core/port.h"
#include "plugin/tcp/device.h"

namespace deft::net {

// The ports that connections of this device drive: all but those whose wire carries links of other
// devices alone.
Ports ports_of(const Device& device, const std::vector<std::shared_ptr<const Device>>& all,
               const Ports& ports);

// Mbit/s of the links and these ports together; what shares a wire counts once.
std::int64_t told_speed(const Device& device, const Ports& ports);

// Those of this process's ports; any thread.
Ports process_ports_of(const Device& device, const Ports& ports);

}  // namespace deft::net
