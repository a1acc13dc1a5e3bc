// SPDX-License-Identifier: Apache-2.0
#include "plugin/ucx/ports.h"

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "base/random.h"
#include "plugin/ucx/handshake.h"
#include "plugin/ucx/library.h"
#include "topology/rdma.h"

namespace deft::net {
namespace {

// What the host knows of a device of this name.
void describe(UcxPort& port, const std::vector<Interface>& links,
              const std::vector<RdmaPort>& rdma) {
    for (const Interface& link : links) {
        if (link.name == port.name) {
            port.speed_mbps = link.nominal_mbps;
            port.interfaces = {link.name};
        }
    }
    for (const RdmaPort& each : rdma) {
        if (each.name() == port.name) {
            port.speed_mbps = each.speed_mbps;
            port.interfaces = each.interfaces;
        }
    }
}

std::shared_ptr<const UcxPort> open_port(const deft_ucx_module_t& module, const std::string& name,
                                         const std::vector<Interface>& links,
                                         const std::vector<RdmaPort>& rdma, std::string& problem) {
    auto port = std::make_shared<UcxPort>();
    port->name = name.empty() ? "all" : name;
    port->kind = "ucx";
    port->layer = Port::Layer::Ucx;
    // In the place of an IPv4 address, for which there is a short form on the wire. A process tells
    // by it which pairs it has tried in vain.
    port->gid.raw[10] = port->gid.raw[11] = 0xff;
    (void)random_bytes(port->gid.raw + 12, 4);
    port->device = UcxDevice::open(module, name, problem);
    if (port->device == nullptr) {
        problem = port->name + ": " + problem;
        return nullptr;
    }
    describe(*port, links, rdma);
    return port;
}

UcxPorts open_asked_for() {
    if (!Config::process().is(Key::Ucx, "on")) {
        return {};
    }
    std::string problem;
    UcxPorts ports;
    if (const deft_ucx_module_t* const module = process_ucx_module(problem); module != nullptr) {
        ports = open_ucx_ports(*module, Config::process().text(Key::UcxDevices), list_interfaces(),
                               process_rdma().ports, problem);
    }
    for (const auto& port : ports) {
        DEFT_INFO("UCX link %s, UCX %s", port->name.c_str(), port->device->module().version());
    }
    if (!problem.empty()) {
        DEFT_WARN("DEFT_UCX=on: %s over UCX: %s", ports.empty() ? "no links" : "not all links",
                  problem.c_str());
    }
    return ports;
}

}  // namespace

std::unique_ptr<Handshake> UcxPort::begin(PathRole role, UniqueFd socket, bool /*flushes*/) const {
    return std::make_unique<UcxHandshake>(device, role, std::move(socket), "UCX " + name);
}

UcxPorts open_ucx_ports(const deft_ucx_module_t& module, std::string_view names,
                        const std::vector<Interface>& links, const std::vector<RdmaPort>& rdma,
                        std::string& problem) {
    UcxPorts ports;
    do {
        const std::size_t comma = std::min(names.find(','), names.size());
        if (auto port =
                open_port(module, std::string(names.substr(0, comma)), links, rdma, problem);
            port != nullptr) {
            ports.push_back(std::move(port));
        }
        names.remove_prefix(std::min(comma + 1, names.size()));
    } while (!names.empty());
    return ports;
}

const UcxPorts& ucx_ports() {
    static const UcxPorts& ports = *new UcxPorts(open_asked_for());  // as long as the process
    return ports;
}

}  // namespace deft::net
