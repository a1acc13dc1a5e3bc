// SPDX-License-Identifier: Apache-2.0
// NCCL's own topology files (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): <system><cpu><pci>...
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "topology/discovery/machine.h"
#include "topology/discovery/xml.h"

namespace deft::discovery {
namespace {

std::uint32_t hex(std::string_view text) {
    text.remove_prefix(text.starts_with("0x") ? 2 : 0);
    std::uint32_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value, 16);
    return value;
}

// "16 GT/s" times a width, in GB/s, without the encoding's overhead (128b/130b from 8 GT/s on).
double pci_rate(const XmlElement& pci) {
    const double transfers = std::strtod(std::string(pci["link_speed"]).c_str(), nullptr);
    const double lanes = std::strtod(std::string(pci["link_width"]).c_str(), nullptr);
    const bool sane = transfers > 0 && transfers < 1000 && lanes > 0 && lanes <= 64;
    return sane ? transfers * lanes / 8 * (transfers < 8 ? 0.8 : 128.0 / 130) : 0;
}

class Reader {
public:
    explicit Reader(Machine& machine) : machine_(machine) {}

    bool cpu(const XmlElement& element) {
        PciPlace place;
        place.numa_node = std::atoi(std::string(element["numaid"]).c_str());
        place.bridges.push_back("cpu" + std::to_string(place.numa_node));
        machine_.numa_nodes.push_back(place.numa_node);
        for (const XmlElement& child : element.children) {
            if (child.name == "pci" && !pci(child, place)) {
                return false;
            }
            if (child.name == "nic") {  // not on PCI
                nets(child, Nic{});
            }
        }
        return true;
    }
    std::string problem;

private:
    static bool has_child(const XmlElement& element, std::string_view name) {
        return std::any_of(element.children.begin(), element.children.end(),
                           [&](const XmlElement& child) { return child.name == name; });
    }

    bool pci(const XmlElement& element, PciPlace place) {
        if (element["busid"].empty()) {
            problem = fmt::format("line {}: <pci> has no busid", element.line);
            return false;
        }
        const std::uint32_t pci_class = hex(element["class"]);
        const std::uint32_t vendor = hex(element["vendor"]);
        place.address = element["busid"];
        PciPlace below = place;
        below.bridges.push_back(place.address);
        for (const XmlElement& child : element.children) {
            if (child.name == "pci" && !pci(child, below)) {
                return false;
            }
        }
        const bool nic_below = has_child(element, "nic");
        if (has_child(element, "gpu") || is_gpu(pci_class, vendor == 0 ? 0x10de : vendor)) {
            machine_.gpus.push_back({place, "", pci_rate(element)});
            return true;
        }
        const std::string kind = nic_kind(pci_class, vendor, hex(element["device"]));
        if (!nic_below && kind.empty()) {
            return true;
        }
        Nic nic;
        nic.name = place.address;
        nic.kind = kind.empty() ? "ethernet" : kind;
        nic.pci = place;
        nic.pci_gbytes = pci_rate(element);
        if (!nic_below) {
            machine_.nics.push_back(nic);
        }
        for (const XmlElement& child : element.children) {
            if (child.name == "nic") {
                nets(child, nic);
            }
        }
        return true;
    }

    // <net name="mlx5_0" speed="200000" port="1"/>: names of NCCL's plugin, most often RDMA
    // devices, whose ports count from 1. NCCL's Socket transport names interfaces, which have port
    // 0; so do deft's own devices.
    void nets(const XmlElement& element, const Nic& card) {
        for (const XmlElement& net : element.children) {
            if (net.name != "net" || net["name"].empty()) {
                continue;
            }
            Nic nic = card;
            nic.name = net["name"];
            nic.has_interface = net["port"] == "0" && !nic.name.starts_with("deft");
            nic.rdma = nic.has_interface ? "" : nic.name;
            nic.kind = nic.kind.empty() ? "virtual" : nic.kind;
            nic.speed_mbps = std::atoll(std::string(net["speed"]).c_str());
            machine_.nics.push_back(std::move(nic));
        }
    }

    Machine& machine_;
};

// Each <cpu> names its host; files of old releases, which hold one host, do not.
std::vector<std::string_view> hosts_of(const XmlElement& system) {
    std::vector<std::string_view> hosts;
    for (const XmlElement& child : system.children) {
        const std::string_view host = child["host_hash"];
        if (child.name == "cpu" && std::find(hosts.begin(), hosts.end(), host) == hosts.end()) {
            hosts.push_back(host);
        }
    }
    return hosts;
}

}  // namespace

bool read_nccl_xml(const XmlElement& system, std::size_t host, Machine& machine,
                   std::string& problem) {
    const std::vector<std::string_view> hosts = hosts_of(system);
    if (hosts.empty()) {
        problem = "the system has no <cpu>";
        return false;
    }
    machine.hosts = hosts.size();
    machine.host = host;
    Reader reader(machine);
    for (const XmlElement& child : system.children) {
        const bool ours =
            child.name == "cpu" && host <= hosts.size() && child["host_hash"] == hosts[host - 1];
        if (ours && !reader.cpu(child)) {
            problem = reader.problem;
            return false;
        }
    }
    return true;
}

}  // namespace deft::discovery
