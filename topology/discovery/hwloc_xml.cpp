// SPDX-License-Identifier: Apache-2.0
// hwloc's XML files, of its releases 1 to 3: what `lstopo --of xml` writes. A reader of our own:
// the library of one major release refuses files of the next, and release 3 numbers the kinds of
// operating system devices otherwise.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "topology/discovery/hwloc_distances.h"
#include "topology/discovery/machine.h"
#include "topology/discovery/xml.h"

namespace deft::discovery {
namespace {

constexpr std::uint32_t kNvidia = 0x10de;

// "2.0" -> 2; files of release 1 name no version.
int major_version(std::string_view version) {
    int major = 1;
    std::from_chars(version.data(), version.data() + version.size(), major);
    return major;
}

// The only bit of "0x00000001" or "0x1,,0x0" (words of 32 bits, the highest first); -1 if there are
// more, or none.
int only_bit(std::string_view mask) {
    int bit = -1;
    int below = 0;  // bits of the words that follow
    while (!mask.empty()) {
        const auto comma = mask.rfind(',');
        std::string_view word = comma == mask.npos ? mask : mask.substr(comma + 1);
        mask = comma == mask.npos ? std::string_view() : mask.substr(0, comma);
        word.remove_prefix(word.starts_with("0x") ? 2 : 0);
        std::uint32_t value = 0;
        std::from_chars(word.data(), word.data() + word.size(), value, 16);
        if (std::popcount(value) > 1 || (value != 0 && bit >= 0)) {
            return -1;
        }
        if (value != 0) {
            bit = below + std::countr_zero(value);
        }
        below += 32;
    }
    return bit;
}

// "0200 [15b3:101d] [15b3:0016] 00"
struct PciType {
    std::uint32_t pci_class = 0;  // 0xCCSSPP
    std::uint32_t vendor = 0;
    std::uint32_t device = 0;
};
PciType type_of(std::string_view text) {
    PciType type;
    unsigned pci_class = 0;
    if (std::sscanf(std::string(text).c_str(), "%4x [%x:%x]", &pci_class, &type.vendor,
                    &type.device) == 3) {
        type.pci_class = pci_class << 8;
    }
    return type;
}

class Reader {
public:
    Reader(int version, Machine& machine) : version_(version), machine_(machine) {}

    const std::unordered_map<std::string, NvLinkMatrix::Object>& objects() const {
        return objects_;
    }

    // Empty, or what is wrong with the file.
    const std::string& problem() const { return problem_; }

    // `place`: of what is above.
    void object(const XmlElement& element, PciPlace place) {
        const std::string_view type = element["type"];
        if (type == "NUMANode") {
            machine_.numa_nodes.push_back(std::atoi(std::string(element["os_index"]).c_str()));
        }
        if (type == "Bridge") {
            place.bridges.push_back(bridge(element));
        } else if (!element["nodeset"].empty()) {
            place.numa_node = only_bit(element["nodeset"]);
        }
        if (type == "PCIDev") {
            device(element, place);
        }
        for (const XmlElement& child : element.children) {
            if (child.name == "object") {
                object(child, place);
            }
        }
    }

private:
    // By the bridge's own place, or, of one that hangs on the CPU, by what is below it.
    static std::string bridge(const XmlElement& element) {
        if (std::string own = pci_address_of(element["pci_busid"]);
            !own.empty() && !element["bridge_type"].starts_with("0")) {
            return own;
        }
        unsigned domain = 0;
        unsigned bus = 0;
        std::sscanf(std::string(element["bridge_pci"]).c_str(), "%x:[%x", &domain, &bus);
        return fmt::format("pci{:04x}:{:02x}", domain, bus);
    }

    void device(const XmlElement& element, PciPlace place) {
        place.address = pci_address_of(element["pci_busid"]);
        const PciType type = type_of(element["pci_type"]);
        if (place.address.empty()) {
            problem_ = fmt::format(
                "line {}: a PCIDev has no pci_busid; write the file anew with "
                "lstopo --of xml",
                element.line);
            return;
        }
        const double rate = std::strtod(std::string(element["pci_link_speed"]).c_str(), nullptr);
        const double gbytes = rate > 0 && rate < 1000 ? rate : 0;
        const std::string model(info(element, "PCIDevice"));
        if (is_gpu(type.pci_class, type.vendor)) {
            Gpu gpu{place, model, gbytes};
            gpu.sm = nvidia_capability(type.device);
            add_gpu(element, std::move(gpu));
            return;
        }
        if (element["subtype"] == "NVSwitch" ||
            (type.vendor == kNvidia && type.pci_class >> 16 == 0x06)) {
            objects_[std::string(element["gp_index"])] = {NvLinkEnd::Switch, place.address};
        }
        Nic nic;
        nic.kind = nic_kind(type.pci_class, type.vendor, type.device);
        if (nic.kind.empty()) {
            return;
        }
        nic.pci = place;
        nic.model = model;
        nic.pci_gbytes = gbytes;
        const std::size_t before = machine_.rdma.ports.size();
        add_nics(element, nic);
        for (std::size_t i = before; i < machine_.rdma.ports.size(); ++i) {
            if (manages_switch(type.vendor, type.device, gbytes)) {
                machine_.rdma.ports[i].obstacle = kManagesSwitch;
            }
        }
    }

    // NVML's name for the GPU is better than that of the PCI database.
    void add_gpu(const XmlElement& element, Gpu gpu) {
        const auto same = [&](const Gpu& other) { return other.pci.address == gpu.pci.address; };
        if (machine_.gpus.size() < kMostGpus &&
            std::any_of(machine_.gpus.begin(), machine_.gpus.end(), same)) {
            problem_ = fmt::format(
                "line {}: GPU {} is there twice; write the file anew with "
                "lstopo --of xml",
                element.line, gpu.pci.address);
            return;
        }
        const NvLinkMatrix::Object object{NvLinkEnd::Gpu, gpu.pci.address};
        objects_[std::string(element["gp_index"])] = object;
        for (const XmlElement& child : element.children) {
            if (child["type"] == "OSDev") {
                objects_[std::string(child["gp_index"])] = object;
                const std::string_view model = info(child, "GPUModel");
                gpu.model = model.empty() ? gpu.model : model;
                const std::string_view uuid = info(child, "NVIDIAUUID");
                gpu.uuid = uuid.empty() ? gpu.uuid : uuid;
            }
        }
        machine_.gpus.push_back(std::move(gpu));
    }

    // One for each interface of the card, or one for a card without.
    void add_nics(const XmlElement& element, Nic nic) {
        std::vector<const XmlElement*> interfaces;
        const XmlElement* rdma = nullptr;
        for (const XmlElement& child : element.children) {
            if (child["type"] != "OSDev" || child["name"].empty()) {
                continue;
            }
            switch (kind_of(child["osdev_type"])) {
                case OsDevice::Network:
                    interfaces.push_back(&child);
                    break;
                case OsDevice::Rdma:
                    rdma = &child;
                    break;
                case OsDevice::Other:
                    break;
            }
        }
        nic.rdma = rdma != nullptr ? (*rdma)["name"] : "";
        nic.has_interface = !interfaces.empty();
        for (const XmlElement* const each : interfaces) {
            nic.name = (*each)["name"];
            machine_.nics.push_back(nic);
        }
        if (interfaces.empty()) {
            nic.name = nic.rdma.empty() ? nic.pci.address : nic.rdma;
            machine_.nics.push_back(nic);
        }
        if (nic.kind == "efa") {
            return;
        }
        if (rdma != nullptr) {
            add_ports(*rdma, interfaces, nic);
        } else if (nic.kind == "infiniband" && interfaces.empty()) {
            RdmaPort port = port_of(nic);
            port.device = nic.pci.address;
            machine_.rdma.ports.push_back(std::move(port));
        }
    }

    static RdmaPort port_of(const Nic& nic) {
        RdmaPort port;
        port.device = nic.rdma;
        port.layer = nic.kind == "ethernet" ? "Ethernet" : "InfiniBand";
        port.pci = nic.pci;
        port.virtual_function = nic.model.find("Virtual Function") != std::string::npos;
        return port;
    }

    // hwloc tells of each port its state, its addresses and, of InfiniBand, its LID; of old
    // releases nothing, and then there is one.
    void add_ports(const XmlElement& rdma, const std::vector<const XmlElement*>& interfaces,
                   const Nic& nic) {
        constexpr int kMostPorts = 64;
        int ports = 1;
        while (ports < kMostPorts && !info(rdma, fmt::format("Port{}State", ports + 1)).empty()) {
            ++ports;
        }
        for (int number = 1; number <= ports; ++number) {
            RdmaPort port = port_of(nic);
            port.number = number;
            port.card = info(rdma, "SysImageGUID");
            read_state(rdma, ports, port);
            read_gids(rdma, port);
            for (const XmlElement* const each : interfaces) {
                const std::string_view which = info(*each, "Port");
                if (ports == 1 || which.empty() || which == std::to_string(number)) {
                    port.interfaces.emplace_back((*each)["name"]);
                }
            }
            machine_.rdma.ports.push_back(std::move(port));
        }
    }

    static void read_state(const XmlElement& rdma, int ports, RdmaPort& port) {
        const std::string_view state = info(rdma, fmt::format("Port{}State", port.number));
        const std::string_view lid = info(rdma, fmt::format("Port{}LID", port.number));
        // A card that can do both has one class, and LIDs on its InfiniBand ports alone.
        if (state == "4" && !lid.empty() && (ports > 1 || lid != "0x0")) {
            port.layer = lid == "0x0" ? "Ethernet" : "InfiniBand";
        }
        port.state = state == "4" ? "ACTIVE" : state.empty() ? "" : "DOWN";
        if (port.state == "DOWN") {
            port.obstacle = "not active";
        }
    }

    static void read_gids(const XmlElement& rdma, RdmaPort& port) {
        const std::string begin = fmt::format("Port{}GID", port.number);
        for (const XmlElement& each : rdma.children) {
            const std::string_view name = each["name"];
            if (each.name == "info" && name.starts_with(begin)) {
                RdmaGid gid;
                gid.index = std::atoi(std::string(name.substr(begin.size())).c_str());
                gid.gid = each["value"];
                port.gids.push_back(std::move(gid));
            }
        }
    }

    // The value of an <info> of the object; empty if it has none.
    static std::string_view info(const XmlElement& element, std::string_view name) {
        for (const XmlElement& each : element.children) {
            if (each.name == "info" && each["name"] == name) {
                return each["value"];
            }
        }
        return {};
    }

    enum class OsDevice { Network, Rdma, Other };
    // Numbers until release 2 (2 network, 3 OpenFabrics), bits from release 3 on (16 network, 32
    // OpenFabrics, which are networks too).
    OsDevice kind_of(std::string_view text) const {
        unsigned value = 0;
        std::from_chars(text.data(), text.data() + text.size(), value);
        if (version_ < 3) {
            return value == 2 ? OsDevice::Network : value == 3 ? OsDevice::Rdma : OsDevice::Other;
        }
        return (value & 32) != 0   ? OsDevice::Rdma
               : (value & 16) != 0 ? OsDevice::Network
                                   : OsDevice::Other;
    }

    int version_;
    Machine& machine_;
    std::unordered_map<std::string, NvLinkMatrix::Object> objects_;  // by gp_index
    std::string problem_;
};

}  // namespace

bool read_hwloc_xml(const XmlElement& root, Machine& machine, std::string& problem) {
    Reader reader(major_version(root["version"]), machine);
    bool any = false;
    for (const XmlElement& child : root.children) {
        if (child.name == "object") {
            reader.object(child, PciPlace{});
            any = true;
        }
    }
    if (!any) {
        problem = fmt::format("hwloc's <topology> of line {} holds no machine", root.line);
        return false;
    }
    problem = reader.problem();
    if (!problem.empty() || !read_nvlink_matrix(root, reader.objects(), machine, problem)) {
        return false;
    }
    std::sort(machine.numa_nodes.begin(), machine.numa_nodes.end());
    return true;
}

}  // namespace deft::discovery
