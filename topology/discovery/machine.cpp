// SPDX-License-Identifier: Apache-2.0
#include "topology/discovery/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unistd.h>
#include <algorithm>
#include <cstdio>

#include "topology/discovery/xml.h"
#include "topology/link_relations.h"

namespace deft::discovery {
namespace {

constexpr std::uint32_t kNvidia = 0x10de;
constexpr std::uint32_t kAmazon = 0x1d0f;

// Why deft has no TCP link over a card without a network interface.
std::string why_not_rdma(const Machine& machine, const Nic& nic) {
    if (nic.kind == "efa") {
        return "EFA, which only AWS's plugin for NCCL drives";
    }
    for (const RdmaPort& port : machine.rdma.ports) {
        if (machine.rdma.use == RdmaUse::Aside && port.usable() &&
            (port.device == nic.rdma || port.device == nic.name)) {
            return "NCCL's IB drives it";
        }
    }
    return "no network interface, and deft drives only TCP so far";
}

Nic* find_nic(Machine& machine, const Interface& link) {
    for (Nic& nic : machine.nics) {
        if (nic.name == link.name && nic.has_interface) {
            return &nic;
        }
    }
    return nullptr;
}

constexpr const char* kAnew =
    "; write the file anew with lstopo --of xml, or as NCCL's NCCL_TOPO_DUMP_FILE";

// A machine of a file, whose settings are not known: as NCCL and deft decide without any.
void complete(Machine& machine) {
    std::vector<int>& nodes = machine.numa_nodes;
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    const auto linked = [](const Gpu& gpu) { return !gpu.nvlinks.empty(); };
    if (machine.gpus.size() > 1 && std::none_of(machine.gpus.begin(), machine.gpus.end(), linked)) {
        machine.notes.emplace_back("NVLinks: none, or not written into the file");
    }
    machine.rdma = choose_rdma(std::move(machine.rdma.ports), RdmaSettings{});
    judge_by_hardware(machine);
    add_devices(machine);
}

const char* virtual_kind(const Interface& link) {
    if (link.loopback) {
        return "loopback";
    }
    return link.pci_path.empty() ? "virtual" : "ethernet";
}

}  // namespace

std::string pci_address_of(std::string_view text) {
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned device = 0;
    unsigned function = 0;
    int end = 0;
    const std::string whole(text);
    const bool parsed = std::sscanf(whole.c_str(), "%8x:%2x:%2x.%1x%n", &domain, &bus, &device,
                                    &function, &end) == 4;
    return parsed && whole.size() == static_cast<std::size_t>(end)
               ? fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function)
               : whole;
}

bool is_gpu(std::uint32_t pci_class, std::uint32_t vendor) {
    return vendor == kNvidia && (pci_class >> 8 == 0x0300 || pci_class >> 8 == 0x0302);
}

bool manages_switch(std::uint32_t vendor, std::uint32_t device, double pci_gbytes) {
    constexpr double kTwoLanes = 8;  // of Gen 5
    return vendor == 0x15b3 && device == 0x1021 && pci_gbytes > 0 && pci_gbytes < kTwoLanes;
}

std::string nic_kind(std::uint32_t pci_class, std::uint32_t vendor, std::uint32_t device) {
    if (vendor == kAmazon && (device & 0xfff0) == 0xefa0) {
        return "efa";
    }
    switch (pci_class >> 8) {
        case 0x0200:
            return "ethernet";
        case 0x0207:
        case 0x0c06:  // serial bus, InfiniBand: ConnectX-3 and older with ports of either kind
            return "infiniband";
        default:
            return pci_class >> 16 == 0x02 ? "network" : "";
    }
}

namespace {

// By the outermost element: which kind of file it is. Returns what is wrong with it.
std::string read_topology(const XmlElement& root, const std::string& path, std::size_t host,
                          Machine& machine) {
    std::string why;
    if (root.name == "system") {
        machine.source = path + " (NCCL topology)";
        read_nccl_xml(root, host, machine, why);
    } else if (root.name == "topology") {
        machine.source = path + " (hwloc)";
        read_hwloc_xml(root, machine, why);
    } else {
        why = fmt::format(
            "line {}: the outermost element is <{}>, neither hwloc's <topology> nor NCCL's "
            "<system>{}",
            root.line, root.name, kAnew);
    }
    if (why.empty() && (machine.gpus.size() > kMostGpus || machine.nics.size() > kMostNics)) {
        why = fmt::format(
            "{} GPUs and {} NICs in one host, at most {} and {} are read; is it the "
            "right file?",
            machine.gpus.size(), machine.nics.size(), kMostGpus, kMostNics);
    }
    if (why.empty() && host > machine.hosts) {
        why = fmt::format("there is no host {}, the file holds {}", host, machine.hosts);
    }
    return why;
}

}  // namespace

bool read_machine_text(const std::string& path, const std::string& text, std::size_t host,
                       Machine& machine, std::string& problem) {
    XmlElement root;
    if (text.empty()) {
        problem = "the file is empty";
        return false;
    }
    if (!parse_xml(text, root, problem)) {
        problem += problem.starts_with("line ") ? kAnew : "";
        return false;
    }
    problem = read_topology(root, path, host, machine);
    if (!problem.empty()) {
        return false;
    }
    complete(machine);
    return true;
}

bool read_sysfs_copy(const std::string& root, Machine& machine, std::string& problem) {
    const auto holds = [&](const char* folder) {
        return ::access((root + folder).c_str(), F_OK) == 0;
    };
    if (!holds("/bus/pci/devices") && !holds("/class/infiniband")) {
        problem =
            "a folder, and no copy of a host's sysfs (it has neither bus/pci/devices nor "
            "class/infiniband); name a file in it";
        return false;
    }
    read_sysfs_machine(root, machine);
    machine.source = root + " (sysfs)";
    machine.rdma.ports = list_rdma_ports(root, "", SysfsOf::Another);
    complete(machine);
    return true;
}

void judge_by_hardware(Machine& machine) {
    // The rules for a live host, of which a file tells names and at most speeds.
    std::vector<Interface> interfaces;
    for (const Nic& nic : machine.nics) {
        if (nic.has_interface) {
            Interface& link = interfaces.emplace_back();
            link.name = nic.name;
            link.loopback = nic.name == "lo";
            link.up = nic.state != "down";
            link.speed_mbps = nic.speed_mbps;
            link.addresses.emplace_back();
        }
    }
    const InterfaceSelection selection = select_interfaces(interfaces, "", "", false);
    for (Nic& nic : machine.nics) {
        if (!nic.reason.empty()) {
            continue;  // the reader knows better
        }
        if (nic.has_interface) {
            for (const auto& skipped : selection.skipped) {
                if (skipped.name == nic.name) {
                    nic.reason = skipped.reason;
                }
            }
            Interface link;
            link.name = nic.name;
            if (nic.reason.empty() && machine.rdma.use == RdmaUse::Aside &&
                machine.rdma.shares_wire(link)) {
                nic.reason = kWireOfRdma;
            }
        } else if (nic.kind != "ethernet" || !nic.rdma.empty()) {
            nic.reason = why_not_rdma(machine, nic);
        }
        // NCCL's files name no interfaces; a card of Ethernet most often has one.
        nic.link = nic.reason.empty() ? "tcp" : "";
    }
}

void describe(const Interface& link, Nic& nic) {
    nic.model = nic.model.empty() ? link.driver : nic.model;
    nic.speed_mbps = link.speed_mbps;
    nic.nominal_mbps = link.nominal_mbps;
    nic.wire = link.wire;
    nic.state = link.up ? "up" : "down";
    for (const Address& address : link.addresses) {
        nic.addresses.push_back(fmt::format("{}/{}", address.text(), address.prefix));
    }
}

// A literal address is a link on the interface that carries it.
bool stands_for(const Interface& used, const Interface& link) {
    return used.name == link.name ||
           std::any_of(link.addresses.begin(), link.addresses.end(), [&](const Address& own) {
               return used.index == 0 && used.addresses[0] == own;
           });
}

// Whether the interface is used as a link, or why not.
void judge(const Interface& link, const InterfaceSelection& selection, Nic& nic) {
    nic.reason = selection.problem.empty() ? "" : "no interface is used: see below";
    for (const auto& skipped : selection.skipped) {
        if (skipped.name == link.name) {
            nic.reason = skipped.reason;
        }
    }
    for (const Interface& used : selection.links) {
        if (stands_for(used, link)) {
            nic.nominal_mbps = used.nominal_mbps;  // the operator may have said it
            nic.link = "tcp";
            nic.reason.clear();
        }
    }
}

void add_interfaces(const std::vector<Interface>& all, const InterfaceSelection& selection,
                    Machine& machine) {
    machine.problem = selection.problem;
    for (const Interface& link : all) {
        Nic* const known = find_nic(machine, link);
        Nic& nic = known != nullptr ? *known : machine.nics.emplace_back();
        if (known == nullptr) {
            nic.name = link.name;
            nic.has_interface = true;
            nic.kind = virtual_kind(link);
            nic.pci = pci_place(link.pci_path, link.numa_node);
        }
        describe(link, nic);
        judge(link, selection, nic);
    }
    for (Nic& nic : machine.nics) {
        if (!nic.has_interface) {
            nic.reason = why_not_rdma(machine, nic);
        } else if (nic.link.empty() && nic.reason.empty()) {
            nic.reason = "not in this network namespace";
        }
    }
}

void add_devices(Machine& machine) {
    std::vector<LinkPlace> places;
    std::vector<Interface> links;
    for (const Nic& nic : machine.nics) {
        if (!nic.link.empty()) {
            Interface& link = links.emplace_back();
            link.name = nic.name;
            link.speed_mbps = nic.speed_mbps;
            link.nominal_mbps = nic.nominal_mbps;
            link.wire = nic.wire;
            places.push_back({nic.pci, link.nominal_speed()});
        }
    }
    std::vector<PciPlace> gpus;
    for (const Gpu& gpu : machine.gpus) {
        gpus.push_back(gpu.pci);
    }
    const std::vector<AffinityGroup> groups = group_by_affinity(places, gpus);
    for (const AffinityGroup& group : groups) {
        ShownDevice& device = machine.devices.emplace_back();
        device.name =
            groups.size() == 1 ? "deft" : fmt::format("deft{}", machine.devices.size() - 1);
        device.shared = group.shared;
        device.nearest = links[group.nearest].name;
        std::vector<Interface> own;
        for (const std::size_t i : group.links) {
            device.links.push_back(links[i].name);
            own.push_back(links[i]);
        }
        device.speed_mbps = told_speed(own);
    }
}

Machine this_machine() {
    Machine machine;
    if (!read_hwloc_live(machine)) {
        machine = Machine{};
        read_sysfs_machine("/sys", machine);
    }
    machine.live = true;
    read_nvml(machine);
    machine.rdma = process_rdma();
    add_interfaces(list_interfaces(), process_links(), machine);
    add_devices(machine);
    if (machine.rdma.use == RdmaUse::Aside && process_interfaces().problem.empty()) {
        machine.problem.clear();  // NCCL's IB has all links: no fault
    }
    return machine;
}

}  // namespace deft::discovery
