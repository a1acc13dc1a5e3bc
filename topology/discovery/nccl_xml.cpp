// SPDX-License-Identifier: Apache-2.0
// NCCL's own topology files (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): <system><cpu><pci>...
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <unordered_set>
#include <utility>

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

// Names of RDMA devices: the kernel's and the persistent ones of udev. NCCL's files name the port
// of such a device, but files written by hand may not.
bool rdma_name(std::string_view name) {
    constexpr std::string_view begin[] = {"mlx", "ibp", "ibs",  "roce", "rdma", "bnxt_re", "irdma",
                                          "hns", "efa", "hfi1", "qedr", "siw",  "rxe",     "erdma"};
    return std::any_of(std::begin(begin), std::end(begin),
                       [&](std::string_view each) { return name.starts_with(each); });
}

class Reader {
public:
    explicit Reader(Machine& machine) : machine_(machine) {}

    bool cpu(const XmlElement& element) {
        std::int64_t node = -1;
        if (!number(element, "numaid", -1, 65535, node)) {
            return false;
        }
        PciPlace place;
        place.numa_node = static_cast<int>(node);
        place.bridges.push_back("cpu" + std::to_string(node));
        if (node >= 0) {
            machine_.numa_nodes.push_back(place.numa_node);
        }
        return below(element, place);
    }

    // What lies in a <cpu>, or in the <system> itself: PCI devices, and networks that are not on
    // PCI.
    bool below(const XmlElement& element, const PciPlace& place) {
        for (const XmlElement& child : element.children) {
            if (child.name == "pci" && !pci(child, place)) {
                return false;
            }
            if (child.name == "nic" && !nets(child, Nic{})) {
                return false;
            }
            if (child.name == "net" && !net(child, Nic{})) {
                return false;
            }
        }
        return true;
    }
    const std::string& problem() const { return problem_; }

private:
    static const XmlElement* child_of(const XmlElement& element, std::string_view name) {
        for (const XmlElement& child : element.children) {
            if (child.name == name) {
                return &child;
            }
        }
        return nullptr;
    }

    bool fail(const XmlElement& element, const std::string& what) {
        problem_ = fmt::format(
            "line {}: <{}> {}; correct it, or have NCCL write the file anew "
            "(NCCL_TOPO_DUMP_FILE)",
            element.line, element.name, what);
        return false;
    }

    // Leaves `value` as it is where the attribute is missing or empty.
    bool number(const XmlElement& element, std::string_view attribute, std::int64_t low,
                std::int64_t high, std::int64_t& value) {
        const std::string_view text = element[attribute];
        if (text.empty()) {
            return true;
        }
        std::int64_t read = 0;
        const auto end = std::from_chars(text.data(), text.data() + text.size(), read);
        if (end.ec != std::errc() || end.ptr != text.data() + text.size() || read < low ||
            read > high) {
            return fail(element, fmt::format("has {}=\"{}\", which is no number from {} to {}",
                                             attribute, text, low, high));
        }
        value = read;
        return true;
    }

    bool pci(const XmlElement& element, PciPlace place) {
        if (element["busid"].empty()) {
            return fail(element, "has no busid");
        }
        const std::uint32_t pci_class = hex(element["class"]);
        const std::uint32_t vendor = hex(element["vendor"]);
        place.address = pci_address_of(element["busid"]);
        PciPlace inside = place;
        inside.bridges.push_back(place.address);
        for (const XmlElement& child : element.children) {
            if (child.name == "pci" && !pci(child, inside)) {
                return false;
            }
        }
        const XmlElement* const gpu_below = child_of(element, "gpu");
        if (gpu_below != nullptr || is_gpu(pci_class, vendor == 0 ? 0x10de : vendor)) {
            return gpu(element, gpu_below, place);
        }
        const std::string kind = nic_kind(pci_class, vendor, hex(element["device"]));
        return (kind.empty() && child_of(element, "nic") == nullptr) ||
               network(element, kind, place);
    }

    // A PCI device that is a network card, or in which there is one.
    bool network(const XmlElement& element, const std::string& kind, const PciPlace& place) {
        Nic nic;
        nic.name = place.address;
        nic.kind = kind.empty() ? "network" : kind;
        nic.pci = place;
        nic.pci_gbytes = pci_rate(element);
        const std::size_t before = machine_.rdma.ports.size();
        if (child_of(element, "nic") == nullptr) {
            card(nic);
        }
        for (const XmlElement& child : element.children) {
            if (child.name == "nic" && !nets(child, nic)) {
                return false;
            }
        }
        if (manages_switch(hex(element["vendor"]), hex(element["device"]), nic.pci_gbytes)) {
            for (std::size_t i = before; i < machine_.rdma.ports.size(); ++i) {
                machine_.rdma.ports[i].obstacle = kManagesSwitch;
            }
        }
        return true;
    }

    // A card of which the file names neither interface nor device.
    void card(Nic nic) {
        if (nic.kind == "infiniband") {
            RdmaPort port;
            port.device = nic.name;
            port.layer = "InfiniBand";
            port.pci = nic.pci;
            machine_.rdma.ports.push_back(std::move(port));
        }
        machine_.nics.push_back(std::move(nic));
    }

    bool gpu(const XmlElement& element, const XmlElement* detail, const PciPlace& place) {
        if (machine_.gpus.size() == kMostGpus) {
            return fail(element, fmt::format("is one GPU more than {}", kMostGpus));
        }
        const auto same = [&](const Gpu& other) { return other.pci.address == place.address; };
        if (std::any_of(machine_.gpus.begin(), machine_.gpus.end(), same)) {
            return fail(element, "is GPU " + place.address + ", which is there already");
        }
        Gpu gpu;
        gpu.pci = place;
        gpu.pci_gbytes = pci_rate(element);
        std::int64_t sm = nvidia_capability(hex(element["device"]));
        if (detail != nullptr && !number(*detail, "sm", 0, 1000, sm)) {
            return false;
        }
        gpu.sm = static_cast<int>(sm);
        for (std::size_t i = 0; detail != nullptr && i < detail->children.size(); ++i) {
            const XmlElement& child = detail->children[i];
            if (child.name == "nvlink" && !nvlink(child, gpu)) {
                return false;
            }
            // Its bandwidth is in MB/s.
            std::int64_t mbytes = 0;
            if (child.name == "c2c" && !number(child, "bw", 0, 100'000'000, mbytes)) {
                return false;
            }
            gpu.c2c_gbytes += static_cast<double>(mbytes) / 1000;
        }
        machine_.gpus.push_back(std::move(gpu));
        return true;
    }

    bool nvlink(const XmlElement& element, Gpu& gpu) {
        std::int64_t count = 1;
        if (!number(element, "count", 0, 1024, count)) {
            return false;
        }
        if (count == 0) {
            return true;
        }
        NvLinks links;
        links.end = nvlink_end(hex(element["tclass"]));
        links.target = pci_address_of(element["target"]);
        links.count = static_cast<int>(count);
        links.gbytes = static_cast<double>(count) * nccl_nvlink_rate(gpu.sm == 0 ? 80 : gpu.sm);
        gpu.nvlink_source = "nccl";
        gpu.nvlinks.push_back(std::move(links));
        return true;
    }

    bool nets(const XmlElement& element, const Nic& card) {
        for (const XmlElement& child : element.children) {
            if (child.name == "net" && !net(child, card)) {
                return false;
            }
        }
        return true;
    }

    // <net name="mlx5_0" speed="200000" port="1"/>: names of NCCL's plugin, most often RDMA
    // devices, whose ports count from 1. NCCL's Socket transport names interfaces, which have port
    // 0; so do deft's own devices.
    bool net(const XmlElement& element, Nic nic) {
        nic.name = element["name"];
        if (nic.name.empty()) {
            return true;
        }
        if (machine_.nics.size() == kMostNics || machine_.rdma.ports.size() == kMostNics) {
            return fail(element, fmt::format("is one network more than {}", kMostNics));
        }
        std::int64_t port = rdma_name(nic.name) ? 1 : 0;
        // -1: not known
        if (!number(element, "port", 0, 255, port) ||
            !number(element, "speed", -1, 16'000'000, nic.speed_mbps)) {
            return false;
        }
        nic.speed_mbps = std::max<std::int64_t>(nic.speed_mbps, 0);
        nic.kind = nic.kind.empty() ? "virtual" : nic.kind;
        if (nic.name.starts_with("deft")) {
            nic.reason = "a device of deft's plugin, not a link";
        } else if (port == 0) {
            nic.has_interface = true;
        } else {
            nic.rdma = nic.name;
        }
        if (!nic.rdma.empty() && nic.kind != "efa" && !add_port(element, port, nic)) {
            return true;
        }
        // NCCL keeps one of several with the same name.
        const auto same = [&](const Nic& other) {
            return other.name == nic.name && other.pci.address == nic.pci.address;
        };
        if (std::none_of(machine_.nics.begin(), machine_.nics.end(), same)) {
            machine_.nics.push_back(std::move(nic));
        }
        return true;
    }

    // False if the port is there already.
    bool add_port(const XmlElement& element, std::int64_t number, const Nic& nic) {
        RdmaPort port;
        port.device = nic.rdma;
        port.number = static_cast<int>(number);
        for (const RdmaPort& other : machine_.rdma.ports) {
            if (other.name() == port.name()) {
                return false;
            }
        }
        port.layer = nic.kind == "infiniband" || nic.name.starts_with("ibp")  ? "InfiniBand"
                     : nic.kind == "ethernet" || nic.name.starts_with("roce") ? "Ethernet"
                                                                              : "";
        port.speed_mbps = nic.speed_mbps;
        port.card = element["guid"];
        port.pci = nic.pci;
        machine_.rdma.ports.push_back(std::move(port));
        return true;
    }

    Machine& machine_;
    std::string problem_;
};

// Each <cpu> names its host; files of old releases, which hold one host, do not.
std::vector<std::string_view> hosts_of(const XmlElement& system) {
    std::vector<std::string_view> hosts;
    std::unordered_set<std::string_view> seen;
    for (const XmlElement& child : system.children) {
        if (child.name == "cpu" && seen.insert(child["host_hash"]).second) {
            hosts.push_back(child["host_hash"]);
        }
    }
    return hosts;
}

}  // namespace

bool read_nccl_xml(const XmlElement& system, std::size_t host, Machine& machine,
                   std::string& problem) {
    const std::vector<std::string_view> hosts = hosts_of(system);
    if (hosts.empty()) {
        problem = fmt::format(
            "line {}: the system has no <cpu>; have NCCL write the file anew "
            "(NCCL_TOPO_DUMP_FILE)",
            system.line);
        return false;
    }
    machine.hosts = hosts.size();
    machine.host = host;
    Reader reader(machine);
    for (const XmlElement& child : system.children) {
        const bool ours =
            child.name == "cpu" && host <= hosts.size() && child["host_hash"] == hosts[host - 1];
        if (ours && !reader.cpu(child)) {
            problem = reader.problem();
            return false;
        }
    }
    // Outside any <cpu>: the place is not known, nor whose it is.
    PciPlace nowhere;
    nowhere.bridges.emplace_back("system");
    if (!reader.below(system, nowhere)) {
        problem = reader.problem();
        return false;
    }
    recognise_gpus(machine);
    return true;
}

}  // namespace deft::discovery
