// SPDX-License-Identifier: Apache-2.0
// Where a device sits in the tree of PCI bridges, and how far two devices are from each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deft {

struct PciPlace {
    std::string address;               // "0000:10:1c.0"; empty: not a PCI device, or not known
    std::vector<std::string> bridges;  // above it, outermost first; the first is the host bridge
    int numa_node = -1;                // -1: not known

    bool known() const { return !address.empty(); }
};

// In the words of `nvidia-smi topo`.
enum class Distance {
    Same,    // one device
    Pix,     // within one PCI switch
    Pxb,     // over several switches, without the host bridge
    Phb,     // over one host bridge
    Node,    // over host bridges of one NUMA node
    Sys,     // over the link between NUMA nodes
    Unknown  // one of them has no known place
};
const char* to_string(Distance distance);
Distance distance(const PciPlace& a, const PciPlace& b);

// From a resolved folder of sysfs ("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"). Not known
// if it is none.
PciPlace pci_place(std::string_view sysfs_folder, int numa_node);

// The first line of a file of sysfs; false if there is none.
bool read_sysfs(const std::string& path, std::string& line);

// NVIDIA GPUs of this host, in the order of their addresses. `root`: where sysfs is mounted.
std::vector<PciPlace> list_gpu_places(const std::string& root = "/sys");

}  // namespace deft
