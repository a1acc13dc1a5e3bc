// SPDX-License-Identifier: Apache-2.0
#include "topology/discovery/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "topology/discovery/xml.h"
#include "topology/link_relations.h"

namespace deft::discovery {
namespace {

constexpr std::uint32_t kNvidia = 0x10de;
constexpr std::uint32_t kAmazon = 0x1d0f;

const char* why_not_rdma(const Nic& nic) {
    return nic.kind == "efa" ? "EFA: deft has no driver for it"
                             : "no network interface, and deft drives only TCP so far";
}

Nic* find_nic(Machine& machine, const Interface& link) {
    for (Nic& nic : machine.nics) {
        if (nic.name == link.name && nic.has_interface) {
            return &nic;
        }
    }
    return nullptr;
}

const char* virtual_kind(const Interface& link) {
    if (link.loopback) {
        return "loopback";
    }
    return link.pci_path.empty() ? "virtual" : "ethernet";
}

}  // namespace

bool is_gpu(std::uint32_t pci_class, std::uint32_t vendor) {
    return vendor == kNvidia && (pci_class >> 8 == 0x0300 || pci_class >> 8 == 0x0302);
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

bool read_machine_text(const std::string& path, const std::string& text, std::size_t host,
                       Machine& machine, std::string& problem) {
    XmlElement root;
    std::string why;
    bool good = true;
    if (text.empty()) {
        good = false;
        why = "the file is empty";
    }
    good = good && parse_xml(text, root, why);
    if (good && root.name == "system") {
        good = read_nccl_xml(root, host, machine, why);
        machine.source = path + " (NCCL topology)";
    } else if (good && root.name == "topology") {
        good = read_hwloc_xml(root, machine, why);
        machine.source = path + " (hwloc)";
    } else if (good) {
        good = false;
        why = fmt::format(
            "the outermost element is <{}>, neither hwloc's <topology> nor NCCL's <system>",
            root.name);
    }
    if (good && host > machine.hosts) {
        good = false;
        why = fmt::format("there is no host {}, the file holds {}", host, machine.hosts);
    }
    if (!good) {
        problem = why;
        return false;
    }
    judge_by_hardware(machine);
    add_devices(machine);
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
            link.up = true;
            link.speed_mbps = nic.speed_mbps;
            link.addresses.emplace_back();
        }
    }
    const InterfaceSelection selection = select_interfaces(interfaces, "", "", false);
    for (Nic& nic : machine.nics) {
        if (nic.has_interface) {
            const auto skipped =
                std::find_if(selection.skipped.begin(), selection.skipped.end(),
                             [&](const auto& other) { return other.name == nic.name; });
            nic.link = skipped == selection.skipped.end() ? "tcp" : "";
            nic.reason = skipped == selection.skipped.end() ? "" : skipped->reason;
        } else if (!nic.rdma.empty() || nic.kind == "efa") {
            nic.reason = why_not_rdma(nic);
        } else {
            // NCCL's files name no interfaces; such a card most often has one.
            nic.link = nic.kind == "ethernet" || nic.kind == "infiniband" ? "tcp" : "";
            nic.reason = nic.link.empty() ? "no network interface" : "";
        }
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
            nic.reason = why_not_rdma(nic);
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
    machine.rdma = process_rdma();
    add_interfaces(list_interfaces(), process_links(), machine);
    add_devices(machine);
    if (machine.rdma.use == RdmaUse::Aside && process_interfaces().problem.empty()) {
        machine.problem.clear();  // NCCL's IB has all links: no fault
    }
    return machine;
}

}  // namespace deft::discovery
