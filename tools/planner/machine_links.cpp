// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/machine_links.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "planner/model/collective.h"
#include "tools/planner/fields.h"
#include "tools/topo_command.h"
#include "tools/ucx_links.h"
#include "topology/discovery/gpu_paths.h"
#include "topology/discovery/host_links.h"
#include "topology/link_relations.h"

namespace deft::tools {

using namespace discovery;

namespace {

// What all-reduces reach of nominal rates (sources: planner/model/presets.cpp): 41.3 GB/s of a
// 400 Gbit/s port, 1.16 GB/s of 10GbE.
constexpr double kRdmaYield = 0.83;
constexpr double kTcpYield = 0.93;
// Seconds of a step of a ring: NVLink from 32 KiB on 8 A100 (43.8 us in 14 steps), and EFA's and
// 10GbE's from the same place.
constexpr double kInsideStep = 3e-6;
constexpr double kRdmaStep = 10e-6;
constexpr double kTcpStep = 30e-6;

// A port of which nobody says the rate has most likely the fastest that its PCI link can feed.
std::int64_t rate_behind(double pci_gbytes) {
    constexpr std::int64_t kRates[] = {800000, 400000, 200000, 100000, 50000, 40000, 25000, 10000};
    for (const std::int64_t mbps : kRates) {
        if (static_cast<double>(mbps) <= pci_gbytes * 8000) {
            return mbps;
        }
    }
    return kUnknownSpeed;
}

double pci_rate_of(const Machine& machine, const HostLink& link) {
    for (const Nic& nic : machine.nics) {
        if (nic.pci.known() && nic.pci.address == link.pci.address) {
            return nic.pci_gbytes;
        }
    }
    return 0;
}

void add(std::vector<Uplink>& uplinks, const std::string& kind, std::int64_t mbps, bool told) {
    const auto same = [&](const Uplink& other) { return other.kind == kind; };
    auto at = std::find_if(uplinks.begin(), uplinks.end(), same);
    if (at == uplinks.end()) {
        at = uplinks.insert(uplinks.end(), Uplink{kind, 0, 0, true});
    }
    ++at->count;
    at->mbps += mbps;
    at->told = at->told && told;
}

// A wire that only UCX drives: of one that carries TCP or RDMA as well, the other link has counted.
bool adds_wire(const HostLink& ucx, const std::vector<HostLink>& links) {
    return ucx.driver == Driver::Deft && !ucx.transports.empty() &&
           std::none_of(links.begin(), links.end(), [&](const HostLink& other) {
               return other.kind != "ucx" && other.name == ucx.name &&
                      other.driver != Driver::Nobody;
           });
}

void add_host(const Machine& machine, std::vector<Uplink>& rdma, std::vector<Uplink>& tcp) {
    const std::vector<HostLink> links = host_links(machine);
    for (const HostLink& link : links) {
        const bool told = link.speed_mbps > 0;
        if (link.kind == "ucx") {
            if (adds_wire(link, links)) {
                add(rdma, link.kind,
                    told ? link.speed_mbps : rate_behind(pci_rate_of(machine, link)), told);
            }
            continue;
        }
        const bool port = link.kind == "ib" || link.kind == "roce" || link.kind == "rdma";
        Interface interface;
        interface.name = link.name;
        if (!port && machine.rdma.drives_ports && machine.rdma.shares_wire(interface)) {
            continue;  // the port beside it has the wire
        }
        if ((link.driver == Driver::Nccl || (link.driver == Driver::Deft && port)) &&
            !link.virtual_function) {
            add(rdma, link.kind, told ? link.speed_mbps : rate_behind(pci_rate_of(machine, link)),
                told);
        } else if (link.driver == Driver::Deft && !port) {
            add(tcp, link.kind, told ? link.speed_mbps : kUnknownSpeed, told);
        }
    }
}

planner::Link uplink_of(const Node& node, const Uplink& uplink, std::uint32_t nodes) {
    const bool tcp = uplink.kind == "tcp";
    const double rate = static_cast<double>(uplink.mbps) * 1e6 / 8 * (tcp ? kTcpYield : kRdmaYield);
    const double step = tcp ? kTcpStep : kRdmaStep;
    planner::Link link =
        node.gpus == 1 ? planner::ring_link(uplink.kind, nodes, step, rate)
                       : planner::hierarchical_link(uplink.kind, nodes, node.gpus, kInsideStep,
                                                    node.inside * 1e9, step, rate);
    for (planner::Hop& hop : link.hops) {
        // All kinds of uplinks meet in the same wires inside.
        hop.resource = hop.resource == uplink.kind + ":node" ? "node" : hop.resource;
    }
    link.kind = uplink.kind;
    link.source = fmt::format(
        "{} nodes of {} GPU{}, {} {:.0f} GB/s inside, {} x {} {:g} Gbit/s "
        "between, {} ({})",
        nodes, node.gpus, node.gpus == 1 ? "" : "s",
        node.nvlink ? "NVLink" : "PCI (no NVLink is known)", node.inside, uplink.count, uplink.kind,
        static_cast<double>(uplink.mbps) / 1000 / static_cast<double>(uplink.count),
        uplink.told ? "nominal" : "guessed: the rate is not told", node.source);
    return link;
}

}  // namespace

bool names_machine(const std::string& what) {
    struct stat status {};
    return what == "topo" || what.ends_with(".xml") ||
           (::stat(what.c_str(), &status) == 0 && S_ISDIR(status.st_mode));
}

Node node_of(const std::vector<Machine>& hosts) {
    Node node;
    node.source = hosts.front().source;
    node.hosts = hosts.size();
    node.nvlink = true;
    std::vector<Uplink> tcp;
    for (const Machine& host : hosts) {
        if (host.gpus.empty()) {
            throw InputError(host.source +
                             ": there is no GPU: name a topology of a host that has some, or the "
                             "links one by one");
        }
        const InsideRate inside = inside_rate(host);
        node.inside = node.gpus == 0 ? inside.gbytes : std::min(node.inside, inside.gbytes);
        node.nvlink = node.nvlink && inside.nvlink;
        node.gpus += static_cast<std::uint32_t>(host.gpus.size());
        add_host(host, node.uplinks, tcp);
    }
    std::move(tcp.begin(), tcp.end(), std::back_inserter(node.uplinks));
    return node;
}

Node read_node(const std::string& what) {
    if (what == "topo") {
        return node_of({this_host()});
    }
    std::vector<Machine> hosts;
    for (std::size_t host = 1; host == 1 || host <= hosts.front().hosts; ++host) {
        std::string problem;
        if (!read_machine_file(what, host, hosts.emplace_back(), problem)) {
            throw InputError(problem);
        }
    }
    return node_of(hosts);
}

planner::Fabric fabric_of(const Node& node, std::uint32_t ranks) {
    planner::Fabric fabric;
    fabric.name = node.source;
    if (ranks <= node.gpus) {
        planner::Link link = planner::ring_link(node.nvlink ? "nvlink" : "pci", ranks, kInsideStep,
                                                node.inside * 1e9);
        link.kind = link.name;
        link.source = fmt::format("{} of the {} GPUs of one node, {:.0f} GB/s each ({})", ranks,
                                  node.gpus, node.inside, node.source);
        fabric.links.push_back(std::move(link));
        return fabric;
    }
    if (ranks % node.gpus != 0) {
        throw InputError(
            fmt::format("{}: {} ranks are no whole number of nodes of {} GPUs; "
                        "--nodes says how many there are",
                        node.source, ranks, node.gpus));
    }
    for (const Uplink& uplink : node.uplinks) {
        fabric.links.push_back(uplink_of(node, uplink, ranks / node.gpus));
    }
    if (fabric.links.empty()) {
        throw InputError(node.source +
                         ": neither NCCL nor deft would drive a link to other nodes (deft topo "
                         "says why); name the links one by one");
    }
    return fabric;
}

}  // namespace deft::tools
