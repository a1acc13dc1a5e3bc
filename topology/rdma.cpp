// SPDX-License-Identifier: Apache-2.0
#include "topology/rdma.h"

#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/config.h"
#include "base/unique_fd.h"
#include "topology/nccl_settings.h"
#include "topology/pci.h"

namespace deft {
namespace {

constexpr char kSysfs[] = "/sys";
constexpr char kNodes[] = "/dev/infiniband";

std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    if (DIR* const directory = ::opendir(folder.c_str())) {
        while (const dirent* const entry = ::readdir(directory)) {
            if (entry->d_name[0] != '.') {
                names.emplace_back(entry->d_name);
            }
        }
        ::closedir(directory);
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::string line_of(const std::string& path) {
    std::string line;
    return read_sysfs(path, line) ? line : std::string();
}

void add(std::vector<std::string>& names, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
    }
}

// "0000:0000:0000:0000:0000:ffff:c000:0201": the last `digits` of it are all zero.
bool zeros(std::string_view gid, std::size_t digits) {
    std::size_t seen = 0;
    for (auto each = gid.rbegin(); each != gid.rend() && seen < digits; ++each) {
        if (*each == ':') {
            continue;
        }
        if (*each != '0') {
            return false;
        }
        ++seen;
    }
    return true;
}

// The kernel shows the interfaces of the network namespace that sysfs was mounted in. Of a tree
// made for tests that has none the ports are as they say.
bool here(const std::string& root, const std::string& interface) {
    if (::if_nametoindex(interface.c_str()) != 0) {
        return true;
    }
    const std::string all = root + "/class/net";
    return root != kSysfs && (::access(all.c_str(), F_OK) != 0 ||
                              ::access((all + "/" + interface).c_str(), F_OK) == 0);
}

// Why the port has no address that another host could send to; empty if it has. RoCE: an entry
// counts if its interface is one of this network namespace; sysfs shows those of all.
std::string read_gids(const std::string& root, const std::string& folder, RdmaPort& port) {
    bool any = false;
    bool elsewhere = false;
    for (const std::string& index : names_in(folder + "/gids")) {
        const std::string gid = line_of(folder + "/gids/" + index);
        // An InfiniBand GID is a prefix and the port's GUID.
        if (zeros(gid, port.ethernet ? 32 : 16)) {
            continue;
        }
        if (port.ethernet) {
            const std::string interface = line_of(folder + "/gid_attrs/ndevs/" + index);
            if (!interface.empty() && !here(root, interface)) {
                elsewhere = true;
                continue;
            }
            if (!interface.empty()) {
                add(port.interfaces, interface);
            }
        }
        any = true;
        if (!port.ethernet) {
            break;
        }
    }
    return any ? "" : elsewhere ? "its GIDs belong to another network namespace" : "has no GID";
}

// Interfaces of the same card: the RoCE port's own one, IPoIB's. A card with several ports says
// which is whose.
void read_interfaces(const std::string& device, std::size_t ports, RdmaPort& port) {
    for (const std::string& name : names_in(device + "/device/net")) {
        const std::string which = line_of(device + "/device/net/" + name + "/dev_port");
        if (ports == 1 || which.empty() || which == std::to_string(port.number - 1)) {
            add(port.interfaces, name);
        }
    }
}

// The ports by which the NVLink switches of HGX systems are managed look like any other card: a
// ConnectX-7 (15b3:1021) whose vital product data say so. Those can be read by root alone; else the
// narrow PCI link tells.
bool manages_switch(const std::string& device) {
    const std::string pci = device + "/device";
    if (line_of(pci + "/vendor") != "0x15b3" || line_of(pci + "/device") != "0x1021") {
        return false;
    }
    const UniqueFd file(::open((pci + "/vpd").c_str(), O_RDONLY | O_CLOEXEC));
    char data[4096];
    const ssize_t bytes = file ? ::read(file.get(), data, sizeof data) : -1;
    if (bytes > 0) {
        return std::string_view(data, static_cast<std::size_t>(bytes)).find("SMDL=SW_MNG") !=
               std::string_view::npos;
    }
    const long width = std::strtol(line_of(pci + "/max_link_width").c_str(), nullptr, 10);
    return width > 0 && width <= 2;
}

// A container sees the host's cards in sysfs, but can only open those whose node it was given.
std::string closed_node(const std::string& sysfs, const std::string& nodes,
                        const std::string& device) {
    const std::string verbs = sysfs + "/class/infiniband_verbs";
    for (const std::string& name : names_in(verbs)) {
        if (line_of(verbs + "/" + name + "/ibdev") == device) {
            const std::string node = nodes + "/" + name;
            return ::access(node.c_str(), R_OK | W_OK) == 0 ? "" : node + " cannot be opened here";
        }
    }
    return "libibverbs has no device for it";
}

// "400 Gb/sec (4X NDR)"
std::int64_t speed_of(const std::string& rate) {
    return static_cast<std::int64_t>(std::strtod(rate.c_str(), nullptr) * 1000);
}

RdmaPort read_port(const std::string& root, const std::string& name, int number,
                   std::size_t ports) {
    const std::string device = root + "/class/infiniband/" + name;
    const std::string folder = device + "/ports/" + std::to_string(number);
    RdmaPort port;
    port.device = name;
    port.number = number;
    const std::string layer = line_of(folder + "/link_layer");
    port.ethernet = layer == "Ethernet";
    if (!port.ethernet && layer != "InfiniBand") {
        port.obstacle = "its link layer is neither InfiniBand nor Ethernet";
    } else if (line_of(folder + "/state").find("ACTIVE") == std::string::npos) {
        port.obstacle = "not active";
    } else {
        port.speed_mbps = speed_of(line_of(folder + "/rate"));
        port.obstacle = read_gids(root, folder, port);
        read_interfaces(device, ports, port);
    }
    return port;
}

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

std::vector<RdmaPort> list_rdma_ports(const std::string& sysfs, const std::string& nodes) {
    std::vector<RdmaPort> ports;
    const std::string all = sysfs + "/class/infiniband";
    for (const std::string& name : names_in(all)) {
        const std::string device = all + "/" + name;
        const std::vector<std::string> numbers = names_in(device + "/ports");
        std::string obstacle;
        bool asked = false;
        for (const std::string& number : numbers) {
            RdmaPort port = read_port(sysfs, name, std::atoi(number.c_str()), numbers.size());
            if (port.usable() && !asked) {
                asked = true;
                obstacle = manages_switch(device) ? "manages an NVLink switch"
                           : nodes.empty()        ? ""
                                                  : closed_node(sysfs, nodes, name);
            }
            if (port.usable()) {
                port.obstacle = obstacle;
            }
            ports.push_back(std::move(port));
        }
    }
    return ports;
}

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

bool RdmaChoice::shares_wire(const Interface& link) const {
    for (const RdmaPort& port : ports) {
        for (const std::string& name : port.interfaces) {
            if (port.usable() && (name == link.name || name == link.lower || name == link.wire ||
                                  name == link.physical_function)) {
                return true;
            }
        }
    }
    return false;
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
    return choice;
}

RdmaChoice choose_rdma(const std::string& sysfs, bool replace) {
    const std::string root = sysfs.empty() ? kSysfs : sysfs;
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

InterfaceSelection process_links() {
    InterfaceSelection selection = process_interfaces();
    const RdmaChoice& rdma = process_rdma();
    if (rdma.use != RdmaUse::Aside || !Config::process().text(Key::Interfaces).empty()) {
        return selection;
    }
    std::vector<Interface> apart;
    for (Interface& link : selection.links) {
        if (rdma.shares_wire(link)) {
            selection.skipped.push_back(
                {link.name, "shares the wire of an RDMA port, which NCCL's IB uses"});
        } else {
            apart.push_back(std::move(link));
        }
    }
    selection.links = std::move(apart);
    if (selection.links.empty() && selection.problem.empty()) {
        selection.problem =
            "every usable interface shares the wire of an RDMA port, which NCCL's IB uses; name in "
            "DEFT_INTERFACES what deft may use all the same";
    }
    return selection;
}

}  // namespace deft
