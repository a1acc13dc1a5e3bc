// SPDX-License-Identifier: Apache-2.0
// The one network device deft shows to NCCL, and the links behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "topology/interfaces.h"

namespace deft::net {

// Made once, then constant: safe to read from any thread.
struct Device {
    std::vector<Interface> links;
    std::string pci_path;  // of the fastest link that has one; may be empty
    std::int64_t speed_mbps = 0;
    std::uint64_t guid = 0;
    std::string name = "deft";

    // True if one of this host's links has this address.
    bool own_address(const Address& address) const;
};

// Makes the device from the links that were chosen. Pure.
Device make_device(std::vector<Interface> links);

// The process's device; made at the first call. NULL and a line in `problem` if the settings are
// wrong or there is no usable link; then the next call tries again.
std::shared_ptr<const Device> process_device(std::string& problem);
// Tests only: uses this device from now on (NULL: forget it).
void set_process_device(std::shared_ptr<const Device> device);

}  // namespace deft::net
