// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/device.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/hash.h"
#include "base/log.h"
#include "base/mutex.h"
#include "plugin/tcp/wire.h"
#include "topology/affinity.h"
#include "topology/link_relations.h"
#include "topology/rdma.h"

namespace deft::net {
namespace {

using Devices = std::vector<std::shared_ptr<const Device>>;

Mutex mutex;
Devices& current() DEFT_REQUIRES(mutex) {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static auto& devices = *new Devices;
    return devices;
}

// The order of the links may be the operator's. What NCCL is told does not depend on it.
std::vector<std::size_t> in_fixed_order(const std::vector<Interface>& links) {
    std::vector<std::size_t> order(links.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::tie(links[a].pci_path, links[a].name) <
               std::tie(links[b].pci_path, links[b].name);
    });
    return order;
}

// In the order they came in.
void keep_fastest(std::vector<Interface>& links) {
    std::vector<std::size_t> order = in_fixed_order(links);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return told_speed(links[a]) > told_speed(links[b]);
    });
    order.resize(wire::kMaxLinks);
    std::sort(order.begin(), order.end());
    std::vector<Interface> kept;
    for (const std::size_t i : order) {
        kept.push_back(std::move(links[i]));
    }
    links = std::move(kept);
}

bool make_current(std::string& problem) DEFT_REQUIRES(mutex) {
    if (!current().empty()) {
        return true;
    }
    InterfaceSelection selection = process_links();
    if (!selection.problem.empty()) {
        problem = selection.problem;
        return false;
    }
    for (const auto& skipped : selection.skipped) {
        DEFT_INFO("interface %s is not used: %s", skipped.name.c_str(), skipped.reason.c_str());
    }
    for (const Interface& link : selection.links) {
        DEFT_INFO("link %s %s, %lld Mbit/s%s%s", link.name.c_str(),
                  link.addresses.empty() ? "" : link.addresses[0].text().c_str(),
                  static_cast<long long>(link.nominal_speed()),
                  link.nominal_speed() == 0 ? " (unknown)" : "",
                  link.up ? "" : ", down: used when it comes up");
    }
    for (const Interface& link : selection.reserves) {
        DEFT_INFO("link %s %s is used while no other carries", link.name.c_str(),
                  link.addresses.empty() ? "" : link.addresses[0].text().c_str());
    }
    current() = make_devices(selection.links, list_gpu_places(), selection.reserves);
    for (const auto& device : current()) {
        DEFT_INFO("device %s: %zu links, place %s", device->name.c_str(), device->first_reserve(),
                  device->pci_path.empty() ? "unknown" : device->pci_path.c_str());
    }
    return true;
}

}  // namespace

std::int64_t Device::speed_mbps() const {
    return told_speed(
        {links.begin(), links.begin() + static_cast<std::ptrdiff_t>(first_reserve())});
}

std::size_t Device::first_reserve() const {
    const auto found = std::find_if(links.begin(), links.end(),
                                    [](const Interface& link) { return link.reserve; });
    return static_cast<std::size_t>(found - links.begin());
}

bool Device::network_shared(std::size_t link) const {
    for (std::size_t other = 0; other < links.size(); ++other) {
        for (const Address& theirs : links[other].addresses) {
            for (const Address& own : links[link].addresses) {
                if (other != link && !own.link_local() && own.same_network(theirs)) {
                    return true;
                }
            }
        }
    }
    return false;
}

bool Device::own_address(const Address& address) const {
    if (address.loopback()) {
        return true;
    }
    for (const Interface& link : links) {
        for (const Address& own : link.addresses) {
            if (own == address) {
                return true;
            }
        }
    }
    return false;
}

Device make_device(std::vector<Interface> links, const std::vector<Interface>& reserves) {
    Device device;
    if (links.size() > wire::kMaxLinks) {
        DEFT_WARN(
            "%zu interfaces are usable, the fastest %zu are used: name those you want in "
            "DEFT_INTERFACES",
            links.size(), wire::kMaxLinks);
        keep_fastest(links);
    }
    device.links = std::move(links);
    std::int64_t fastest = 0;
    std::uint64_t hash = kFnv64Basis;
    for (const std::size_t i : in_fixed_order(device.links)) {
        const Interface& link = device.links[i];
        if (!link.pci_path.empty() && told_speed(link) > fastest) {
            fastest = told_speed(link);
            device.pci_path = link.pci_path;
        }
        // Addresses come and go while processes start; names and hardware stay.
        hash = fnv64(link.name.data(), link.name.size() + 1, hash);
        hash = fnv64(link.hardware.data(), link.hardware.size() + 1, hash);
    }
    device.guid = hash;
    for (const Interface& link : reserves) {
        if (device.links.size() < wire::kMaxLinks) {
            device.links.push_back(link);
        }
    }
    return device;
}

Devices make_devices(const std::vector<Interface>& links, const std::vector<PciPlace>& gpus,
                     const std::vector<Interface>& reserves) {
    std::vector<LinkPlace> places;
    const std::vector<std::size_t> order = in_fixed_order(links);
    for (const std::size_t i : order) {
        places.push_back(
            {pci_place(links[i].pci_path, links[i].numa_node), links[i].nominal_speed()});
    }
    const std::vector<AffinityGroup> groups = group_by_affinity(places, gpus);
    Devices devices;
    for (const AffinityGroup& group : groups) {
        std::vector<std::size_t> positions;
        for (const std::size_t i : group.links) {
            positions.push_back(order[i]);
        }
        std::sort(positions.begin(), positions.end());
        std::vector<Interface> own;
        for (const std::size_t i : positions) {
            own.push_back(links[i]);
        }
        Device device = make_device(std::move(own), reserves);
        const Interface& nearest = links[order[group.nearest]];
        if (std::any_of(device.links.begin(), device.links.end(),
                        [&](const Interface& link) { return link.name == nearest.name; })) {
            device.pci_path = nearest.pci_path;
        }
        if (groups.size() > 1) {
            device.name += std::to_string(devices.size());
        }
        devices.push_back(std::make_shared<const Device>(std::move(device)));
    }
    return devices;
}

std::size_t process_devices(std::string& problem) {
    const MutexLock lock(mutex);
    return make_current(problem) ? current().size() : 0;
}

std::shared_ptr<const Device> process_device(int index, std::string& problem) {
    const MutexLock lock(mutex);
    if (!make_current(problem)) {
        return nullptr;
    }
    if (index < 0 || static_cast<std::size_t>(index) >= current().size()) {
        problem = "there is no device " + std::to_string(index);
        return nullptr;
    }
    return current()[static_cast<std::size_t>(index)];
}

void set_process_devices(Devices devices) {
    const MutexLock lock(mutex);
    current() = std::move(devices);
}

void set_process_device(std::shared_ptr<const Device> device) {
    set_process_devices(device == nullptr ? Devices{} : Devices{std::move(device)});
}

}  // namespace deft::net
