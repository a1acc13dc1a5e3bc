// SPDX-License-Identifier: Apache-2.0
#include "topology/rdma.h"

#include <strings.h>

#include <algorithm>
#include <cstdlib>

#include "base/config.h"
#include "topology/link_relations.h"
#include "topology/nccl_settings.h"

namespace deft {
namespace {

constexpr char kSysfs[] = "/sys";
constexpr char kNodes[] = "/dev/infiniband";

bool set(const std::optional<std::string>& value) {
    return value && !value->empty();
}

// Why NCCL's IB, which asks libibverbs, gets nothing from this device; empty: it does.
std::string undriven(const std::vector<VerbsDevice>& devices, const std::string& name) {
    for (const VerbsDevice& device : devices) {
        if (device.name == name) {
            return device.opens ? "" : "libibverbs cannot open it";
        }
    }
    return "libibverbs has no provider for it (a library such as libmlx5 is missing here)";
}

bool any_usable(const std::vector<RdmaPort>& ports) {
    return std::any_of(ports.begin(), ports.end(),
                       [](const RdmaPort& port) { return port.usable(); });
}

}  // namespace

bool hca_selected(std::string_view list, std::string_view device, int port) {
    const bool excludes = list.starts_with('^');
    list.remove_prefix(excludes ? 1 : 0);
    const bool exact = list.starts_with('=');
    list.remove_prefix(exact ? 1 : 0);
    bool empty = true;
    bool matched = false;
    while (!list.empty()) {
        const auto comma = list.find(',');
        std::string_view item = list.substr(0, comma);
        list = comma == list.npos ? std::string_view() : list.substr(comma + 1);
        const auto colon = item.find(':');
        const std::string_view name = item.substr(0, colon);
        if (name.empty()) {
            continue;
        }
        empty = false;
        // NAME:PORT, and since NCCL 2.30 :RAIL:PLANE behind it.
        const std::string number(colon == item.npos ? std::string_view() : item.substr(colon + 1));
        const bool every_port =
            number.empty() || number[0] == ':' || std::atoi(number.c_str()) == -1;
        if ((exact ? device == name : device.starts_with(name)) &&
            (every_port || std::atoi(number.c_str()) == port)) {
            matched = true;
        }
    }
    return (empty || matched) != excludes;
}

std::string RdmaChoice::usable_ports() const {
    std::string text;
    for (const RdmaPort& port : ports) {
        if (port.usable()) {
            text += (text.empty() ? "" : ", ") + port.name();
        }
    }
    return text;
}

const char* RdmaChoice::replacement() const {
    return drives_ports ? "deft's RDMA and TCP links" : "deft's TCP links";
}

bool RdmaChoice::shares_wire(const Interface& link) const {
    return std::any_of(ports.begin(), ports.end(), [&](const RdmaPort& port) {
        return port.usable() && deft::shares_wire(link, port.interfaces);
    });
}

namespace {

// Ports that the settings, or the driver library, leave out.
void rule_out(std::vector<RdmaPort>& ports, const RdmaSettings& settings) {
    for (RdmaPort& port : ports) {
        if (port.usable() && settings.ib_hca &&
            !hca_selected(*settings.ib_hca, port.device, port.number)) {
            port.obstacle = "left out by NCCL_IB_HCA=" + *settings.ib_hca;
        }
    }
    for (RdmaPort& port : ports) {
        if (port.usable() && settings.devices) {
            port.obstacle = undriven(*settings.devices, port.device);
        }
    }
}

}  // namespace

RdmaChoice choose_rdma(std::vector<RdmaPort> ports, const RdmaSettings& settings) {
    RdmaChoice choice;
    rule_out(ports, settings);
    choice.ports = std::move(ports);
    if (!any_usable(choice.ports)) {
        choice.reason = "no RDMA port is usable";
    } else if (settings.ib_disable && std::atoi(settings.ib_disable->c_str()) != 0) {
        choice.reason = "NCCL_IB_DISABLE=" + *settings.ib_disable;
    } else if (set(settings.net) && ::strcasecmp(settings.net->c_str(), "deft") == 0) {
        choice.use = RdmaUse::Replace;
        choice.reason = "NCCL_NET=" + *settings.net;
    } else if (set(settings.net) && ::strcasecmp(settings.net->c_str(), "IB") != 0) {
        choice.reason = "NCCL_NET=" + *settings.net;
    } else if (!settings.verbs) {
        choice.reason = "libibverbs cannot be opened";
    } else {
        choice.use = settings.replace ? RdmaUse::Replace : RdmaUse::Aside;
        choice.reason = std::string("DEFT_RDMA=") + (settings.replace ? "replace" : "aside");
    }
    choice.drives_ports = choice.use == RdmaUse::Replace && settings.replace;
    return choice;
}

std::string sysfs_root(const std::string& sysfs) {
    return sysfs.empty() ? kSysfs : sysfs;
}

RdmaChoice choose_rdma(const std::string& sysfs, bool replace) {
    const std::string root = sysfs_root(sysfs);
    // A tree made for tests has neither device nodes nor a library that could open them, unless
    // NCCL_IBVERBS_LIB names one made for it.
    const bool real = root == kSysfs;
    std::vector<RdmaPort> ports = list_rdma_ports(root, real ? kNodes : "");
    RdmaSettings settings;
    settings.replace = replace;
    if (any_usable(ports)) {
        settings.net = nccl_setting("NCCL_NET");
        settings.ib_disable = nccl_setting("NCCL_IB_DISABLE");
        settings.ib_hca = nccl_setting("NCCL_IB_HCA");
        const std::string library = nccl_setting("NCCL_IBVERBS_LIB").value_or("");
        // Devices are opened only where NCCL would.
        if ((real || !library.empty()) && choose_rdma(ports, settings).use == RdmaUse::Aside) {
            settings.devices = list_verbs_devices(library);
            settings.verbs = settings.devices.has_value();
        }
    }
    return choose_rdma(std::move(ports), settings);
}

const RdmaChoice& process_rdma() {
    // Never destroyed: NCCL's threads may ask while the process exits.
    static const RdmaChoice& choice = *new RdmaChoice(choose_rdma(
        Config::process().text(Key::Sysfs), Config::process().is(Key::Rdma, "replace")));
    return choice;
}

const char* const kWireOfRdma = "shares the wire of an RDMA port, which NCCL's IB uses";

// A lane that lost its network would end the job, which NCCL alone would have carried on. So two of
// the links that are NCCL's carry what is under way then.
void keep_apart(const RdmaChoice& rdma, InterfaceSelection& selection) {
    constexpr std::size_t kReserves = 2;
    std::vector<Interface> apart;
    for (Interface& link : selection.links) {
        if (rdma.shares_wire(link)) {
            selection.skipped.push_back({link.name, kWireOfRdma});
            link.reserve = true;
            selection.reserves.push_back(std::move(link));
        } else {
            apart.push_back(std::move(link));
        }
    }
    selection.links = std::move(apart);
    std::stable_sort(selection.reserves.begin(), selection.reserves.end(),
                     [](const Interface& a, const Interface& b) {
                         return a.nominal_speed() > b.nominal_speed();
                     });
    if (selection.reserves.size() > kReserves) {
        selection.reserves.resize(kReserves);
    }
}

InterfaceSelection process_links() {
    InterfaceSelection selection = process_interfaces();
    const RdmaChoice& rdma = process_rdma();
    if (rdma.use != RdmaUse::Aside || !Config::process().text(Key::Interfaces).empty()) {
        return selection;
    }
    keep_apart(rdma, selection);
    if (selection.links.empty() && selection.problem.empty()) {
        selection.problem =
            "every usable interface shares the wire of an RDMA port, which NCCL's IB uses; name in "
            "DEFT_INTERFACES what deft may use all the same";
    }
    return selection;
}

}  // namespace deft
