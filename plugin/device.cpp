// SPDX-License-Identifier: Apache-2.0
#include "plugin/device.h"

#include <algorithm>
#include <mutex>

#include "plugin/wire.h"
#include "topology/base/config.h"
#include "topology/base/log.h"

namespace deft::net {
namespace {

constexpr std::int64_t kUnknownSpeed = 10000;  // what NCCL assumes when it does not know

std::mutex mutex;
std::shared_ptr<const Device>& current() {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static auto& device = *new std::shared_ptr<const Device>;
    return device;
}

}  // namespace

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
    device.links = std::move(links);
    std::int64_t fastest = 0;
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const Interface& link : device.links) {
        const std::int64_t speed = link.speed_mbps > 0 ? link.speed_mbps : kUnknownSpeed;
        device.speed_mbps += speed;
        if (!link.pci_path.empty() && speed > fastest) {
            fastest = speed;
            device.pci_path = link.pci_path;
        }
        for (const Address& address : link.addresses) {
            for (std::size_t i = 0; i < address.size(); ++i) {
                hash = (hash ^ address.bytes[i]) * 0x100000001b3;
            }
        }
    }
    device.guid = hash;
    return device;
}

std::shared_ptr<const Device> process_device(std::string& problem) {
    const std::lock_guard lock(mutex);
    if (current() != nullptr) {
        return current();
    }
    InterfaceSelection selection = process_interfaces();
    if (!selection.problem.empty()) {
        problem = selection.problem;
        return nullptr;
    }
    if (selection.links.size() > wire::kMaxLinks) {
        DEFT_WARN(
            "%zu interfaces are usable, the first %zu are used: name those you want in "
            "DEFT_INTERFACES",
            selection.links.size(), wire::kMaxLinks);
        selection.links.resize(wire::kMaxLinks);
    }
    for (const auto& skipped : selection.skipped) {
        DEFT_INFO("interface %s is not used: %s", skipped.name.c_str(), skipped.reason.c_str());
    }
    auto device = std::make_shared<const Device>(make_device(std::move(selection.links)));
    for (const Interface& link : device->links) {
        DEFT_INFO("link %s %s, %lld Mbit/s%s", link.name.c_str(),
                  link.addresses.empty() ? "" : link.addresses[0].text().c_str(),
                  static_cast<long long>(link.speed_mbps),
                  link.speed_mbps == 0 ? " (unknown)" : "");
    }
    current() = device;
    return device;
}

void set_process_device(std::shared_ptr<const Device> device) {
    const std::lock_guard lock(mutex);
    current() = std::move(device);
}

}  // namespace deft::net
