// SPDX-License-Identifier: Apache-2.0
#include "topology/rdma_ports.h"

#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"

namespace deft {
namespace {

constexpr char kSysfs[] = "/sys";

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

// The entries that are whole numbers, in their order.
std::vector<int> numbers_in(const std::string& folder) {
    std::vector<int> numbers;
    for (const std::string& name : names_in(folder)) {
        const bool number = name.size() <= 6 && name.find_first_not_of("0123456789") == name.npos;
        if (number) {
            numbers.push_back(std::atoi(name.c_str()));
        }
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

std::string line_of(const std::string& path) {
    std::string line;
    return read_sysfs(path, line) ? line : std::string();
}

// "4: ACTIVE"; ACTIVE_DEFER is a link that is about to go.
bool says_active(const std::string& state) {
    return state.find("ACTIVE") != state.npos && state.find("ACTIVE_DEFER") == state.npos;
}

bool exists(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
}

std::string resolved(const std::string& path) {
    char folder[PATH_MAX];
    return ::realpath(path.c_str(), folder) != nullptr ? folder : "";
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

// Reads the ports of one tree.
class Tree {
public:
    Tree(const std::string& root, SysfsOf of)
        : root_(root), of_(of), has_interfaces_(exists(root + "/class/net")) {}

    std::vector<int> ports_of(const std::string& device) const {
        std::vector<int> ports = numbers_in(folder(device) + "/ports");
        std::erase(ports, 0);
        return ports;
    }
    RdmaPort port(const std::string& device, int number, std::size_t ports) const;
    bool manages_switch(const std::string& device) const;

private:
    std::string folder(const std::string& device) const {
        return root_ + "/class/infiniband/" + device;
    }
    // The kernel shows the interfaces of the network namespace that sysfs was mounted in. Of a tree
    // made for tests that has none the ports are as they say.
    bool here(const std::string& interface) const {
        if (of_ == SysfsOf::ThisHost && ::if_nametoindex(interface.c_str()) != 0) {
            return true;
        }
        return root_ != kSysfs && (!has_interfaces_ || exists(root_ + "/class/net/" + interface));
    }
    bool gid(const std::string& port_folder, int index, const RdmaPort& port, RdmaGid& gid) const;
    std::string read_gids(const std::string& port_folder, RdmaPort& port) const;
    void read_interfaces(std::size_t ports, RdmaPort& port) const;
    void read_function(RdmaPort& port) const;

    const std::string& root_;
    SysfsOf of_;
    bool has_interfaces_;
};

// False for an entry that nothing can be sent to: an empty one, and one whose type cannot be read,
// as those of other namespaces in some kernels.
bool Tree::gid(const std::string& port_folder, int index, const RdmaPort& port,
               RdmaGid& gid) const {
    const std::string at = std::to_string(index);
    gid.index = index;
    gid.gid = line_of(port_folder + "/gids/" + at);
    // An InfiniBand GID is a prefix and the port's GUID.
    if (zeros(gid.gid, port.ethernet() ? 32 : 16)) {
        return false;
    }
    const std::string type = port_folder + "/gid_attrs/types/" + at;
    gid.type = line_of(type);
    if (!port.ethernet()) {
        return true;
    }
    gid.interface = line_of(port_folder + "/gid_attrs/ndevs/" + at);
    gid.here = gid.interface.empty() ? !gid.type.empty() || !exists(type) : here(gid.interface);
    return true;
}

// Why the port has no address that another host could send to; empty if it has. RoCE: an entry
// counts if its interface is one of this network namespace; sysfs shows those of all.
std::string Tree::read_gids(const std::string& port_folder, RdmaPort& port) const {
    bool any = false;
    for (const int index : numbers_in(port_folder + "/gids")) {
        RdmaGid entry;
        if (!gid(port_folder, index, port, entry)) {
            // An InfiniBand port's table is filled from its beginning.
            if (any && !port.ethernet()) {
                break;
            }
            continue;
        }
        if (entry.here) {
            any = true;
        }
        if (entry.here && !entry.interface.empty()) {
            add(port.interfaces, entry.interface);
        }
        port.gids.push_back(std::move(entry));
    }
    return any                 ? ""
           : port.gids.empty() ? "has no GID"
                               : "its GIDs belong to another network namespace";
}

// Interfaces of the same card: the RoCE port's own one, IPoIB's. A card with several ports says
// which is whose.
void Tree::read_interfaces(std::size_t ports, RdmaPort& port) const {
    const std::string all = folder(port.device) + "/device/net";
    for (const std::string& name : names_in(all)) {
        const std::string which = line_of(all + "/" + name + "/dev_port");
        if (ports == 1 || which.empty() || which == std::to_string(port.number - 1)) {
            add(port.interfaces, name);
        }
    }
}

// Card, place and, of a virtual function, whose it is.
void Tree::read_function(RdmaPort& port) const {
    const std::string own = folder(port.device);
    port.card = line_of(own + "/sys_image_guid");
    const std::string node = line_of(own + "/device/numa_node");
    port.pci = pci_place(resolved(own + "/device"), node.empty() ? -1 : std::atoi(node.c_str()));
    const std::string physical = own + "/device/physfn";
    struct stat link {};  // of a copied tree the link may lead nowhere
    port.virtual_function = ::lstat(physical.c_str(), &link) == 0;
    if (const std::vector<std::string> devices = names_in(physical + "/infiniband");
        !devices.empty()) {
        port.physical = devices.front();
    }
}

RdmaPort Tree::port(const std::string& device, int number, std::size_t ports) const {
    const std::string port_folder = folder(device) + "/ports/" + std::to_string(number);
    RdmaPort port;
    port.device = device;
    port.number = number;
    port.layer = line_of(port_folder + "/link_layer");
    read_function(port);
    // "4: ACTIVE"
    const std::string state = port_folder + "/state";
    const std::string text = line_of(state);
    const auto space = text.rfind(' ');
    port.state = space == text.npos ? text : text.substr(space + 1);
    if (port.layer != "Ethernet" && port.layer != "InfiniBand") {
        port.obstacle = "its link layer is neither InfiniBand nor Ethernet";
    } else if (text.empty()) {
        const int error = ::access(state.c_str(), R_OK) == 0 ? 0 : errno;
        port.obstacle = state + " cannot be read" +
                        (error == 0 ? "" : std::string(": ") + std::strerror(error));
    } else if (!says_active(text)) {
        port.obstacle = kNotActive;
    } else {
        port.speed_mbps = rdma_rate(line_of(port_folder + "/rate"));
        port.obstacle = read_gids(port_folder, port);
        read_interfaces(ports, port);
    }
    return port;
}

// The ports by which the NVLink switches of HGX systems are managed look like any other card: a
// ConnectX-7 (15b3:1021) whose vital product data say so. Those can be read by root alone; else the
// narrow PCI link tells.
bool Tree::manages_switch(const std::string& device) const {
    const std::string pci = folder(device) + "/device";
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

}  // namespace

const char* const kManagesSwitch = "manages an NVLink switch";
const char* const kNotActive = "not active";

bool rdma_port_active(const std::string& sysfs, const std::string& device, int number) {
    return says_active(line_of(sysfs + "/class/infiniband/" + device + "/ports/" +
                               std::to_string(number) + "/state"));
}

const char* RdmaPort::kind() const {
    return layer == "InfiniBand" ? "ib" : ethernet() ? "roce" : layer.empty() ? "rdma" : "other";
}

std::int64_t rdma_rate(const std::string& text) {
    char* end = nullptr;
    const double rate = std::strtod(text.c_str(), &end);
    const std::string_view unit = end;
    const double mbps = unit.starts_with(" Gb/") ? 1000 : unit.starts_with(" Mb/") ? 1 : 0;
    // Ten times the fastest port of 2026; more, or no number, is no rate.
    return rate > 0 && rate * mbps < 16e6 ? static_cast<std::int64_t>(rate * mbps) : 0;
}

std::vector<RdmaPort> list_rdma_ports(const std::string& sysfs, const std::string& nodes,
                                      SysfsOf of) {
    std::vector<RdmaPort> ports;
    const Tree tree(sysfs, of);
    for (const std::string& name : names_in(sysfs + "/class/infiniband")) {
        const std::vector<int> numbers = tree.ports_of(name);
        std::string obstacle;
        bool asked = false;
        for (const int number : numbers) {
            RdmaPort port = tree.port(name, number, numbers.size());
            if (port.usable() && !asked) {
                asked = true;
                obstacle = tree.manages_switch(name) ? kManagesSwitch
                           : nodes.empty()           ? ""
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

}  // namespace deft
