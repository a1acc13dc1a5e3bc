// SPDX-License-Identifier: Apache-2.0
#include "plugin/device.h"

#include <algorithm>
#include <functional>
#include <mutex>

#include "plugin/wire.h"
#include "topology/affinity.h"
#include "topology/base/log.h"
#include "topology/link_stats.h"

namespace deft::net {
namespace {

constexpr std::int64_t kUnknownSpeed = 10000;  // what NCCL assumes when it does not know

using Devices = std::vector<std::shared_ptr<const Device>>;

std::mutex mutex;
Devices& current() {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static auto& devices = *new Devices;
    return devices;
}

std::int64_t speed_of(const Interface& link) {
    const LinkCounters* counters = LinkStats::process().find(link.name.c_str(), "tcp");
    const std::int64_t peak =
        counters == nullptr ? 0 : counters->peak_mbps.load(std::memory_order_relaxed);
    const std::int64_t nominal = link.speed_mbps;
    if (nominal > 0) {
        return peak > nominal + nominal / 10 ? peak : nominal;
    }
    return peak > 0 ? peak : kUnknownSpeed;
}

std::uint64_t hashed(std::uint64_t hash, const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) {
        hash = (hash ^ bytes[i]) * 0x100000001b3;  // FNV-1a
    }
    return hash;
}

// In the order they came in.
void keep_fastest(std::vector<Interface>& links) {
    std::vector<std::int64_t> speeds;
    for (const Interface& link : links) {
        speeds.push_back(link.speed_mbps > 0 ? link.speed_mbps : kUnknownSpeed);
    }
    std::vector<std::int64_t> sorted = speeds;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const std::int64_t least = sorted[wire::kMaxLinks - 1];
    std::size_t equal = wire::kMaxLinks - static_cast<std::size_t>(std::count_if(
                                              speeds.begin(), speeds.end(),
                                              [&](std::int64_t speed) { return speed > least; }));
    std::vector<Interface> kept;
    for (std::size_t i = 0; i < links.size(); ++i) {
        if (speeds[i] > least || (speeds[i] == least && equal > 0)) {
            equal -= speeds[i] == least ? 1 : 0;
            kept.push_back(std::move(links[i]));
        }
    }
    links = std::move(kept);
}

// Under the mutex.
bool make_current(std::string& problem) {
    if (!current().empty()) {
        return true;
    }
    InterfaceSelection selection = process_interfaces();
    if (!selection.problem.empty()) {
        problem = selection.problem;
        return false;
    }
    for (const auto& skipped : selection.skipped) {
        DEFT_INFO("interface %s is not used: %s", skipped.name.c_str(), skipped.reason.c_str());
    }
    for (const Interface& link : selection.links) {
        DEFT_INFO("link %s %s, %lld Mbit/s%s", link.name.c_str(),
                  link.addresses.empty() ? "" : link.addresses[0].text().c_str(),
                  static_cast<long long>(link.speed_mbps),
                  link.speed_mbps == 0 ? " (unknown)" : "");
    }
    current() = make_devices(selection.links, list_gpu_places());
    for (const auto& device : current()) {
        DEFT_INFO("device %s: %zu links, place %s", device->name.c_str(), device->links.size(),
                  device->pci_path.empty() ? "unknown" : device->pci_path.c_str());
    }
    return true;
}

}  // namespace

std::int64_t Device::speed_mbps() const {
    std::int64_t sum = 0;
    for (const Interface& link : links) {
        sum += speed_of(link);
    }
    return sum;
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

Device make_device(std::vector<Interface> links) {
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
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const Interface& link : device.links) {
        const std::int64_t speed = link.speed_mbps > 0 ? link.speed_mbps : kUnknownSpeed;
        if (!link.pci_path.empty() && speed > fastest) {
            fastest = speed;
            device.pci_path = link.pci_path;
        }
        hash = hashed(hash, link.name.data(), link.name.size());
        for (const Address& address : link.addresses) {
            hash = hashed(hash, address.bytes.data(), address.size());
        }
    }
    device.guid = hash;
    return device;
}

Devices make_devices(const std::vector<Interface>& links, const std::vector<PciPlace>& gpus) {
    std::vector<LinkPlace> places;
    for (const Interface& link : links) {
        places.push_back({pci_place(link.pci_path, link.numa_node), link.speed_mbps});
    }
    const std::vector<AffinityGroup> groups = group_by_affinity(places, gpus);
    Devices devices;
    for (const AffinityGroup& group : groups) {
        std::vector<Interface> own;
        for (const std::size_t i : group.links) {
            own.push_back(links[i]);
        }
        Device device = make_device(std::move(own));
        const Interface& nearest = links[group.nearest];
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
    const std::lock_guard lock(mutex);
    return make_current(problem) ? current().size() : 0;
}

std::shared_ptr<const Device> process_device(int index, std::string& problem) {
    const std::lock_guard lock(mutex);
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
    const std::lock_guard lock(mutex);
    current() = std::move(devices);
}

void set_process_device(std::shared_ptr<const Device> device) {
    set_process_devices(device == nullptr ? Devices{} : Devices{std::move(device)});
}

}  // namespace deft::net
