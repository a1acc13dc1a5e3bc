// SPDX-License-Identifier: Apache-2.0
#include "topology/discovery/host_links.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace deft::discovery {
namespace {

const Nic* card_of(const Machine& machine, const RdmaPort& port) {
    const auto found = std::find_if(machine.nics.begin(), machine.nics.end(), [&](const Nic& nic) {
        return nic.rdma == port.device || (!nic.has_interface && nic.name == port.device);
    });
    return found == machine.nics.end() ? nullptr : &*found;
}

HostLink of_port(const Machine& machine, const RdmaPort& port) {
    const Nic* const card = card_of(machine, port);
    HostLink link;
    link.name = port.name();
    link.kind = port.kind();
    link.pci = port.pci.known() || card == nullptr ? port.pci : card->pci;
    link.speed_mbps = port.speed_mbps;
    link.state = port.state.empty() ? "unknown" : port.state == "ACTIVE" ? "up" : "down";
    for (const RdmaGid& gid : port.gids) {
        if (gid.here) {
            link.addresses.push_back(gid.gid);
        }
    }
    link.card = port.card;
    link.virtual_function = port.virtual_function;
    link.physical = port.physical;
    link.reason = port.obstacle;
    if (card != nullptr && card->kind == "efa") {
        link.kind = "efa";
        link.reason = card->reason;
    }
    if (link.reason.empty()) {
        switch (machine.rdma.use) {
            case RdmaUse::Aside:
                link.driver = Driver::Nccl;
                break;
            case RdmaUse::Replace:
                if (machine.rdma.drives_ports) {
                    link.driver = Driver::Deft;
                } else {
                    link.reason = std::string(machine.rdma.replacement()) + " carry the job (" +
                                  machine.rdma.reason + ")";
                }
                break;
            case RdmaUse::None:
                link.reason = machine.rdma.reason;
                break;
        }
    }
    return link;
}

HostLink of_nic(const Nic& nic) {
    HostLink link;
    link.name = nic.name;
    link.kind = nic.has_interface || nic.kind == "ethernet" ? "tcp"
                : nic.kind == "efa"                         ? "efa"
                : nic.kind == "infiniband"                  ? "ib"
                                                            : "other";
    link.pci = nic.pci;
    link.speed_mbps = nic.nominal_mbps > 0 ? nic.nominal_mbps : nic.speed_mbps;
    link.state = nic.state;
    link.addresses = nic.addresses;
    link.driver = nic.link.empty() ? Driver::Nobody : Driver::Deft;
    link.reason = nic.reason;
    return link;
}

// As of the card or interface with its name. UCX drives it under the job's own setting, whoever
// carries the job.
HostLink of_ucx(const UcxLink& ucx, const std::vector<HostLink>& others) {
    HostLink link;
    const auto same = std::find_if(others.begin(), others.end(), [&](const HostLink& other) {
        return !ucx.name.empty() && other.name == ucx.name;
    });
    if (same != others.end()) {
        link = *same;
    }
    link.name = ucx.name.empty() ? "all" : ucx.name;
    link.kind = "ucx";
    link.state = same == others.end() ? "unknown" : same->state;
    link.transports = ucx.transports;
    link.driver = ucx.obstacle.empty() ? Driver::Deft : Driver::Nobody;
    link.reason = ucx.obstacle;
    return link;
}

}  // namespace

const char* to_string(Driver driver) {
    switch (driver) {
        case Driver::Nobody:
            return "nobody";
        case Driver::Deft:
            return "deft";
        case Driver::Nccl:
            return "NCCL";
    }
    return "nobody";
}

std::vector<HostLink> host_links(const Machine& machine) {
    std::vector<HostLink> links;
    for (const RdmaPort& port : machine.rdma.ports) {
        links.push_back(of_port(machine, port));
    }
    for (const Nic& nic : machine.nics) {
        const bool shown =
            !nic.has_interface && std::any_of(machine.rdma.ports.begin(), machine.rdma.ports.end(),
                                              [&](const RdmaPort& port) {
                                                  return port.device == nic.rdma ||
                                                         port.device == nic.name;
                                              });
        if (!shown) {
            links.push_back(of_nic(nic));
        }
    }
    std::vector<HostLink> over_ucx;
    for (const UcxLink& link : machine.ucx.links) {
        over_ucx.push_back(of_ucx(link, links));
    }
    links.insert(links.end(), over_ucx.begin(), over_ucx.end());
    std::stable_sort(links.begin(), links.end(), [](const HostLink& a, const HostLink& b) {
        return std::make_tuple(!a.pci.known(), a.pci.address) <
               std::make_tuple(!b.pci.known(), b.pci.address);
    });
    return links;
}

}  // namespace deft::discovery
