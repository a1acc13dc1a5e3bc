// SPDX-License-Identifier: Apache-2.0
#include "plugin/device_ports.h"

#include <algorithm>
#include <string>

#include "topology/link_relations.h"

namespace deft::net {
namespace {

// The link that shares the port's wire; NULL: none does.
const Interface* link_of(const Device& device, const Port& port) {
    const auto found =
        std::find_if(device.links.begin(), device.links.end(),
                     [&](const Interface& link) { return shares_wire(link, port.interfaces); });
    return found == device.links.end() ? nullptr : &*found;
}

}  // namespace

Ports ports_of(const Device& device, const std::vector<std::shared_ptr<const Device>>& all,
               const Ports& ports) {
    Ports own;
    for (const auto& port : ports) {
        const bool others = link_of(device, *port) == nullptr &&
                            std::any_of(all.begin(), all.end(), [&](const auto& each) {
                                return link_of(*each, *port) != nullptr;
                            });
        if (!others) {
            own.push_back(port);
        }
    }
    return own;
}

std::int64_t told_speed(const Device& device, const Ports& ports) {
    std::int64_t sum = device.speed_mbps();
    for (const auto& port : ports) {
        const Interface* const link = link_of(device, *port);
        const std::int64_t speed = port->speed_mbps > 0 ? port->speed_mbps : kUnknownSpeed;
        sum += std::max<std::int64_t>(0, speed - (link == nullptr ? 0 : told_speed(*link)));
    }
    return sum;
}

Ports process_ports_of(const Device& device, const Ports& ports) {
    if (ports.empty()) {
        return {};
    }
    std::string problem;
    std::vector<std::shared_ptr<const Device>> all;
    const std::size_t count = process_devices(problem);
    for (std::size_t i = 0; i < count; ++i) {
        if (auto each = process_device(static_cast<int>(i), problem); each != nullptr) {
            all.push_back(std::move(each));
        }
    }
    return ports_of(device, all, ports);
}

}  // namespace deft::net
