// SPDX-License-Identifier: Apache-2.0
// The live machine by hwloc.
#include "topology/discovery/machine.h"

#ifdef DEFT_HAVE_HWLOC

#include <fmt/format.h>
#include <hwloc.h>
#include <hwloc/distances.h>

#include <memory>
#include <utility>

namespace deft::discovery {
namespace {

struct Destroy {
    void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Destroy>;

std::string version() {
    return fmt::format("{}.{}", hwloc_get_api_version() >> 16, hwloc_get_api_version() >> 8 & 0xff);
}

std::string info(hwloc_obj_t object, const char* name) {
    const char* value = hwloc_obj_get_info_by_name(object, name);
    return value == nullptr ? "" : value;
}

using PciAttributes = decltype(hwloc_obj_attr_u::pcidev);
std::string address_of(const PciAttributes& pci) {
    return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.dev, pci.func);
}

PciPlace place_of(hwloc_obj_t device) {
    PciPlace place;
    place.address = address_of(device->attr->pcidev);
    for (hwloc_obj_t above = device->parent; above != nullptr; above = above->parent) {
        if (above->type == HWLOC_OBJ_BRIDGE) {
            const auto& bridge = above->attr->bridge;
            place.bridges.insert(place.bridges.begin(),
                                 bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI
                                     ? address_of(bridge.upstream.pci)
                                     : fmt::format("pci{:04x}:{:02x}", bridge.downstream.pci.domain,
                                                   bridge.downstream.pci.secondary_bus));
        } else if (above->nodeset != nullptr && hwloc_bitmap_weight(above->nodeset) == 1) {
            place.numa_node = hwloc_bitmap_first(above->nodeset);
            break;
        }
    }
    return place;
}

// hwloc writes classes with two bytes.
std::uint32_t pci_class(hwloc_obj_t device) {
    return std::uint32_t{device->attr->pcidev.class_id} << 8;
}

void read_nic(hwloc_obj_t device, const std::string& kind, Machine& machine) {
    Nic nic;
    nic.pci = place_of(device);
    nic.kind = kind;
    nic.model = info(device, "PCIDevice");
    nic.pci_gbytes = static_cast<double>(device->attr->pcidev.linkspeed);
    std::vector<std::string> interfaces;
    for (hwloc_obj_t child = device->io_first_child; child != nullptr;
         child = child->next_sibling) {
        if (child->type != HWLOC_OBJ_OS_DEVICE || child->name == nullptr) {
            continue;
        }
        if (child->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK) {
            interfaces.push_back(child->name);
        } else if (child->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
            nic.rdma = child->name;
        }
    }
    nic.has_interface = !interfaces.empty();
    if (interfaces.empty()) {
        interfaces.push_back(nic.rdma.empty() ? nic.pci.address : nic.rdma);
    }
    for (const std::string& name : interfaces) {
        nic.name = name;
        machine.nics.push_back(nic);
    }
}

hwloc_obj_t pci_above(hwloc_obj_t object) {
    while (object != nullptr && object->type != HWLOC_OBJ_PCI_DEVICE) {
        object = object->parent;
    }
    return object;
}

// hwloc makes it where it was built with NVML.
void read_matrix(hwloc_topology_t topology, Machine& machine) {
    unsigned count = 1;
    hwloc_distances_s* distances = nullptr;
    if (hwloc_distances_get_by_name(topology, "NVLinkBandwidth", &count, &distances, 0) != 0 ||
        count == 0) {
        return;
    }
    const std::size_t n = distances->nbobjs;
    NvLinkMatrix matrix;
    matrix.mbytes.assign(distances->values, distances->values + n * n);
    for (std::size_t i = 0; i < n; ++i) {
        NvLinkMatrix::Object object{NvLinkEnd::Cpu, ""};
        if (hwloc_obj_t device = pci_above(distances->objs[i])) {
            object.address = address_of(device->attr->pcidev);
            object.end = is_gpu(pci_class(device), device->attr->pcidev.vendor_id)
                             ? NvLinkEnd::Gpu
                             : NvLinkEnd::Switch;
        }
        matrix.objects.push_back(std::move(object));
    }
    hwloc_distances_release(topology, distances);
    add_nvlinks(matrix, machine);
}

void read(hwloc_topology_t topology, Machine& machine) {
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
        machine.numa_nodes.push_back(static_cast<int>(node->os_index));
    }
    for (hwloc_obj_t device = nullptr;
         (device = hwloc_get_next_pcidev(topology, device)) != nullptr;) {
        const auto& pci = device->attr->pcidev;
        if (is_gpu(pci_class(device), pci.vendor_id)) {
            Gpu gpu{place_of(device), info(device, "PCIDevice"),
                    static_cast<double>(pci.linkspeed)};
            gpu.sm = nvidia_capability(pci.device_id);
            machine.gpus.push_back(std::move(gpu));
        } else if (const std::string kind =
                       nic_kind(pci_class(device), pci.vendor_id, pci.device_id);
                   !kind.empty()) {
            read_nic(device, kind, machine);
        }
    }
    read_matrix(topology, machine);
}

Topology make() {
    hwloc_topology_t raw = nullptr;
    if (hwloc_topology_init(&raw) != 0) {
        return nullptr;
    }
    Topology topology(raw);
    hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
    hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
    return topology;
}

}  // namespace

bool read_hwloc_live(Machine& machine) {
    const Topology topology = make();
    if (topology == nullptr || hwloc_topology_load(topology.get()) != 0) {
        return false;
    }
    machine.source = "this host (hwloc " + version() + ")";
    read(topology.get(), machine);
    return true;
}

}  // namespace deft::discovery

#else

namespace deft::discovery {

bool read_hwloc_live(Machine&) {
    return false;
}

}  // namespace deft::discovery

#endif
