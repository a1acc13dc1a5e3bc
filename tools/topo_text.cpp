// SPDX-License-Identifier: Apache-2.0
// A host in words and tables.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tools/text_output.h"
#include "tools/text_table.h"
#include "tools/topo_command.h"
#include "tools/topo_gpus.h"
#include "tools/topo_matrix.h"
#include "topology/discovery/host_links.h"
#include "topology/link_relations.h"

namespace deft::tools {

using namespace discovery;

namespace {

std::string speed(std::int64_t mbps) {
    if (mbps == 0) {
        return "?";
    }
    return mbps % 1000 == 0 ? fmt::format("{}G", mbps / 1000) : fmt::format("{}M", mbps);
}

std::string node(int numa_node) {
    return numa_node < 0 ? "-" : std::to_string(numa_node);
}

std::string or_dash(const std::string& text) {
    return text.empty() ? "-" : printable(text);
}

// What is said of a link behind its columns.
std::string remark(const HostLink& link) {
    constexpr std::size_t kShown = 2;
    std::string text = printable(link.reason);
    if (link.driver != Driver::Nobody) {
        const auto end = link.addresses.begin() +
                         static_cast<std::ptrdiff_t>(std::min(link.addresses.size(), kShown));
        text = printable(fmt::format("{}", fmt::join(link.addresses.begin(), end, " ")));
        if (link.addresses.size() > kShown) {
            text += fmt::format(" and {} more", link.addresses.size() - kShown);
        }
    }
    if (!link.transports.empty()) {
        text = printable("by " + link.transports + (text.empty() ? "" : ", ")) + text;
    }
    if (link.virtual_function) {
        text += text.empty() ? "virtual function" : "; virtual function";
        text += link.physical.empty() ? "" : " of " + printable(link.physical);
    }
    return text;
}

std::string link_table(const Machine& machine) {
    std::vector<Row> rows = {{"link", "kind", "rate", "state", "PCI", "NUMA", "driven by", ""}};
    for (const HostLink& link : host_links(machine)) {
        rows.push_back({printable(link.name), link.kind, speed(link.speed_mbps), link.state,
                        or_dash(link.pci.address), node(link.pci.numa_node), to_string(link.driver),
                        remark(link)});
    }
    return rows.size() == 1 ? "  none\n" : table(rows, 2);
}

// Ports of one card: they share its PCI link.
std::string card_text(const Machine& machine) {
    std::map<std::string, std::vector<std::string>> cards;
    for (const RdmaPort& port : machine.rdma.ports) {
        // NCCL's files have a guid of 0 where nobody knows it.
        if (port.card.find_first_not_of("0:x") != port.card.npos) {
            cards[port.card].push_back(port.name());
        }
    }
    std::string text;
    for (const auto& [card, ports] : cards) {
        if (ports.size() > 1) {
            text += printable(fmt::format("  one card ({}): {}", card, fmt::join(ports, " ")));
            text += "\n";
        }
    }
    return text;
}

std::string device_table(const Machine& machine) {
    std::vector<Row> rows = {{"device", "speed", "near", "links"}};
    for (const ShownDevice& device : machine.devices) {
        rows.push_back({device.name, speed(device.speed_mbps), printable(device.nearest),
                        printable(fmt::format("{}", fmt::join(device.links, " ")))});
    }
    return table(rows, 2);
}

std::string numa_text(const std::vector<int>& nodes) {
    if (nodes.empty()) {
        return "NUMA: unknown";
    }
    return fmt::format("NUMA: {} node{} ({})", nodes.size(), nodes.size() == 1 ? "" : "s",
                       fmt::join(nodes, ", "));
}

// What to do about a speed that nobody says.
std::string unknown_speeds(const Machine& machine) {
    std::vector<std::string> names;
    for (const Nic& nic : machine.nics) {
        if (!nic.link.empty() && nic.kind != "loopback" && nic.speed_mbps == 0 &&
            nic.nominal_mbps == 0) {
            names.push_back(nic.name);
        }
    }
    if (names.empty()) {
        return "";
    }
    return fmt::format(
        "  {}: no driver says the speed, NCCL is told {} for each. Shares follow what is "
        "measured.\n"
        "  To tell NCCL what it is: DEFT_INTERFACES={}@25gbit on every host.\n",
        printable(fmt::format("{}", fmt::join(names, " "))), speed(kUnknownSpeed),
        printable(fmt::format("{}", fmt::join(names, "@25gbit,"))));
}

// What comes of DEFT_UCX=on.
std::string ucx_text(const Machine& machine) {
    const Ucx& ucx = machine.ucx;
    const auto driven = [](const UcxLink& link) { return link.obstacle.empty(); };
    if (!ucx.asked) {
        return "";
    }
    const bool some = std::any_of(ucx.links.begin(), ucx.links.end(), driven);
    return printable(fmt::format("  DEFT_UCX=on: {}{}", some ? "under deft run, by UCX " : "",
                                 some ? ucx.version : "no link goes over UCX")) +
           "\n";
}

// Who carries a job, as far as there is RDMA.
std::string carrier_text(const Machine& machine) {
    if (machine.rdma.ports.empty()) {
        return "";
    }
    return fmt::format("  {} ({})\n", carrier_of(machine), printable(machine.rdma.reason));
}

}  // namespace

// Who carries a job of this host.
std::string carrier_of(const Machine& machine) {
    switch (machine.rdma.use) {
        case RdmaUse::None:
            return "deft's links carry the job";
        case RdmaUse::Aside:
            return machine.devices.empty()
                       ? "NCCL's IB carries the job; deft has no link apart from it"
                       : "NCCL's IB carries the job, deft's links serve lanes";
        case RdmaUse::Replace:
            return fmt::format("{} carry the job in the place of NCCL's IB",
                               machine.rdma.replacement());
    }
    return "";
}

std::string topo_text(const Machine& machine) {
    std::string text = printable(machine.source) + "\n";
    if (machine.hosts > 1) {
        text += fmt::format("  host {} of the {} in this file; --host shows another\n",
                            machine.host, machine.hosts);
    }
    text += "  " + numa_text(machine.numa_nodes) + "\n";
    for (const std::string& note : machine.notes) {
        text += "  " + printable(note) + "\n";
    }
    text += machine.gpus.empty() ? "\nno NVIDIA GPU\n" : "\nGPUs\n" + gpu_table(machine);
    text += nvlink_text(machine) + domain_text(machine);
    text += "\nLinks to other hosts\n" + link_table(machine) + card_text(machine) +
            carrier_text(machine) + ucx_text(machine);
    if (const std::string matrix = matrix_text(machine, false);
        matrix_devices(machine).size() > 1) {
        text += "\nHow near they are\n" + matrix;
    }
    text += "\nWhat NCCL is shown of deft\n";
    text += machine.devices.empty() ? "  nothing\n" : device_table(machine);
    text += unknown_speeds(machine);
    if (machine.devices.size() > 1 && machine.devices[0].shared) {
        text += "  Each device uses all links; they share one speed.\n";
    }
    if (!machine.live && (!machine.nics.empty() || !machine.rdma.ports.empty())) {
        text += "  If these links are up with an address; files rarely say.\n";
    }
    return text;
}

}  // namespace deft::tools
