// SPDX-License-Identifier: Apache-2.0
// The network devices deft shows to NCCL, and the links behind them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "topology/interfaces.h"
#include "topology/pci.h"

namespace deft::net {

// Made once, then constant: safe to read from any thread.
struct Device {
    std::vector<Interface> links;  // reserves last
    std::string pci_path;          // of the fast link nearest to the device's GPUs; may be empty
    // Equal for devices that use the same links: one budget for NCCL. Of names and hardware
    // addresses.
    std::uint64_t guid = 0;
    std::string name = "deft";

    // Sum over the links of what they are made or configured for, 10 Gbit/s where nothing says so;
    // links that share a wire count once, reserves do not. The same in every process of a host, at
    // any time: NCCL fuses the views of a host's ranks, and takes devices that differ for two.
    std::int64_t speed_mbps() const;
    // True if one of this host's links has this address.
    bool own_address(const Address& address) const;
    // True if another link of this device is on the network of this one.
    bool network_shared(std::size_t link) const;
    // Position of the first reserve; links.size(): there is none.
    std::size_t first_reserve() const;
};

// Makes one device from the links that were chosen. Pure.
Device make_device(std::vector<Interface> links, const std::vector<Interface>& reserves = {});
// One device per GPU affinity (topology/affinity.h), each with all reserves. Pure.
std::vector<std::shared_ptr<const Device>> make_devices(
    const std::vector<Interface>& links, const std::vector<PciPlace>& gpus,
    const std::vector<Interface>& reserves = {});

// How many devices this process has; made at the first call. 0 and a line in `problem` if the
// settings are wrong or there is no usable link; then the next call tries again.
std::size_t process_devices(std::string& problem);
// NULL if there is no such device; `problem` as above.
std::shared_ptr<const Device> process_device(int index, std::string& problem);
// Tests only: uses these devices from now on (none: forget them).
void set_process_devices(std::vector<std::shared_ptr<const Device>> devices);
void set_process_device(std::shared_ptr<const Device> device);

}  // namespace deft::net
