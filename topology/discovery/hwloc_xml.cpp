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

#include "topology/discovery/machine.h"
#include "topology/discovery/xml.h"

namespace deft::discovery {
namespace {

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

// As the kernel writes it; release 3 may give the domain eight digits.
std::string address_of(std::string_view text) {
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned device = 0;
    unsigned function = 0;
    return std::sscanf(std::string(text).c_str(), "%x:%x:%x.%x", &domain, &bus, &device,
                       &function) == 4
               ? fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function)
               : std::string();
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
        if (const std::string own = address_of(element["pci_busid"]);
            !own.empty() && !element["bridge_type"].starts_with("0")) {
            return own;
        }
        unsigned domain = 0;
        unsigned bus = 0;
        std::sscanf(std::string(element["bridge_pci"]).c_str(), "%x:[%x", &domain, &bus);
        return fmt::format("pci{:04x}:{:02x}", domain, bus);
    }

    void device(const XmlElement& element, PciPlace place) {
        place.address = address_of(element["pci_busid"]);
        const PciType type = type_of(element["pci_type"]);
        const double rate = std::strtod(std::string(element["pci_link_speed"]).c_str(), nullptr);
        const double gbytes = rate > 0 && rate < 1000 ? rate : 0;
        std::string model;
        for (const XmlElement& info : element.children) {
            if (info.name == "info" && info["name"] == "PCIDevice") {
                model = info["value"];
            }
        }
        if (is_gpu(type.pci_class, type.vendor)) {
            machine_.gpus.push_back({place, model, gbytes});
            return;
        }
        Nic nic;
        nic.kind = nic_kind(type.pci_class, type.vendor, type.device);
        if (nic.kind.empty()) {
            return;
        }
        nic.pci = place;
        nic.model = model;
        nic.pci_gbytes = gbytes;
        add_nics(element, nic);
    }

    // One for each interface of the card, or one for a card without.
    void add_nics(const XmlElement& element, Nic nic) {
        std::vector<std::string> interfaces;
        for (const XmlElement& child : element.children) {
            if (child["type"] != "OSDev" || child["name"].empty()) {
                continue;
            }
            switch (kind_of(child["osdev_type"])) {
                case OsDevice::Network:
                    interfaces.emplace_back(child["name"]);
                    break;
                case OsDevice::Rdma:
                    nic.rdma = child["name"];
                    break;
                case OsDevice::Other:
                    break;
            }
        }
        nic.has_interface = !interfaces.empty();
        if (interfaces.empty()) {
            interfaces.push_back(nic.rdma.empty() ? nic.pci.address : nic.rdma);
        }
        for (const std::string& name : interfaces) {
            nic.name = name;
            machine_.nics.push_back(nic);
        }
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
    std::sort(machine.numa_nodes.begin(), machine.numa_nodes.end());
    return true;
}

}  // namespace deft::discovery
