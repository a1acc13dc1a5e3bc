// SPDX-License-Identifier: Apache-2.0
// Machines by what the kernel shows in sysfs.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "topology/discovery/machine.h"

namespace deft::discovery {
namespace {

namespace fs = std::filesystem;

std::uint32_t number(const fs::path& file) {
    std::string text;
    return read_sysfs(file, text)
               ? static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, 16))
               : 0;
}

std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        names.push_back(entry->path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
}

// "16.0 GT/s PCIe" times "16", in GB/s (128b/130b from 8 GT/s on). An idle GPU lowers its speed, so
// what it can do counts.
double pci_rate(const fs::path& device) {
    std::string speed;
    std::string width;
    if ((!read_sysfs(device / "max_link_speed", speed) &&
         !read_sysfs(device / "current_link_speed", speed)) ||
        !read_sysfs(device / "current_link_width", width)) {
        return 0;
    }
    const double transfers = std::strtod(speed.c_str(), nullptr);
    const double lanes = std::strtod(width.c_str(), nullptr);
    const bool sane = transfers > 0 && transfers < 1000 && lanes > 0 && lanes <= 64;
    return !sane ? 0 : transfers * lanes / 8 * (transfers < 8 ? 0.8 : 128.0 / 130);
}

std::int64_t interface_speed(const fs::path& device, const std::string& name) {
    std::string speed;
    const long value = read_sysfs(device / "net" / name / "speed", speed)
                           ? std::strtol(speed.c_str(), nullptr, 10)
                           : 0;
    return value > 0 ? value : 0;
}

// Of the RDMA port that the interface lies on: IPoIB tells no speed of its own.
std::int64_t port_speed(const fs::path& device, const std::string& name, const std::string& rdma) {
    std::string text;
    const int port =
        read_sysfs(device / "net" / name / "dev_port", text) ? std::atoi(text.c_str()) : 0;
    const fs::path folder = device / "infiniband" / rdma / "ports" / std::to_string(port + 1);
    const bool active = !read_sysfs(folder / "state", text) || text.find("ACTIVE") != text.npos;
    return active && read_sysfs(folder / "rate", text) ? rdma_rate(text) : 0;
}

void read_nic(const fs::path& device, const PciPlace& place, const std::string& kind,
              Machine& machine) {
    Nic nic;
    nic.pci = place;
    nic.kind = kind;
    nic.pci_gbytes = pci_rate(device);
    std::error_code error;
    nic.model = fs::read_symlink(device / "driver", error).filename();
    const std::vector<std::string> rdma = names_in(device / "infiniband");
    std::vector<std::string> interfaces = names_in(device / "net");
    nic.rdma = rdma.empty() ? "" : rdma.front();
    nic.has_interface = !interfaces.empty();
    if (interfaces.empty()) {
        interfaces.push_back(rdma.empty() ? place.address : nic.rdma);
    }
    for (const std::string& name : interfaces) {
        nic.name = name;
        std::string state;
        if (read_sysfs(device / "net" / name / "operstate", state) && state != "unknown") {
            nic.state = state == "up" ? "up" : "down";
        }
        nic.speed_mbps = interface_speed(device, name);
        if (nic.speed_mbps == 0 && !rdma.empty()) {
            nic.speed_mbps = port_speed(device, name, nic.rdma);
        }
        machine.nics.push_back(nic);
    }
}

}  // namespace

void read_sysfs_machine(const std::string& root, Machine& machine) {
    machine.source = "this host (sysfs)";
    for (const std::string& name : names_in(fs::path(root) / "devices/system/node")) {
        if (name.starts_with("node") && name.size() > 4 && name[4] >= '0' && name[4] <= '9') {
            machine.numa_nodes.push_back(std::atoi(name.c_str() + 4));
        }
    }
    std::sort(machine.numa_nodes.begin(), machine.numa_nodes.end());
    const fs::path devices = fs::path(root) / "bus/pci/devices";
    for (const std::string& name : names_in(devices)) {
        std::error_code error;
        const fs::path device = fs::canonical(devices / name, error);
        if (error) {
            continue;
        }
        std::string node;
        const bool known = read_sysfs(device / "numa_node", node);
        const PciPlace place = pci_place(device.native(), known ? std::atoi(node.c_str()) : -1);
        const std::uint32_t pci_class = number(device / "class");
        const std::uint32_t vendor = number(device / "vendor");
        const std::string kind = nic_kind(pci_class, vendor, number(device / "device"));
        if (is_gpu(pci_class, vendor)) {
            Gpu gpu{place, "", pci_rate(device)};
            gpu.sm = nvidia_capability(number(device / "device"));
            machine.gpus.push_back(std::move(gpu));
        } else if (!kind.empty()) {
            read_nic(device, place, kind, machine);
        } else if (fs::exists(device / "net", error)) {
            read_nic(device, place, "ethernet", machine);
        }
        // virtio puts its interfaces one folder deeper.
        for (const std::string& below : names_in(device)) {
            if (below.starts_with("virtio") && fs::exists(device / below / "net", error)) {
                std::erase_if(machine.nics,
                              [&](const Nic& nic) { return nic.name == place.address; });
                read_nic(device / below, place, "ethernet", machine);
            }
        }
    }
}

}  // namespace deft::discovery
