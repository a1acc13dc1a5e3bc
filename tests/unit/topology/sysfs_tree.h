// SPDX-License-Identifier: Apache-2.0
// A tree in the form of sysfs that shows RDMA ports, for DEFT_SYSFS and SOFTDEV_SYSFS. Removed with
// the object.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace deft::test {

class SysfsTree {
public:
    SysfsTree() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "deft-sysfs-XXXXXX").string();
        root_ = ::mkdtemp(pattern.data());
    }
    ~SysfsTree() {
        std::error_code ignored;
        std::filesystem::remove_all(root_, ignored);
    }
    SysfsTree(const SysfsTree&) = delete;

    // What a port of this host is not: set before it is added.
    struct Port {
        std::string layer = "InfiniBand";
        std::string state = "4: ACTIVE";
        std::string rate = "400 Gb/sec (4X NDR)";
        // Index 0; InfiniBand's is a prefix and the port's GUID.
        std::string gid = "fe80:0000:0000:0000:506b:4b03:00aa:0001";
        std::string interface;  // of that GID
    };

    SysfsTree& port(const std::string& device, int number, const Port& port) {
        const std::string folder = device + "/ports/" + std::to_string(number);
        put(folder + "/link_layer", port.layer);
        put(folder + "/state", port.state);
        put(folder + "/rate", port.rate);
        return gid(device, number, 0, port.gid, port.interface);
    }
    SysfsTree& port(const std::string& device, int number) { return port(device, number, Port()); }
    // RoCE over this interface.
    SysfsTree& roce(const std::string& device, const std::string& interface) {
        Port own;
        own.layer = "Ethernet";
        own.gid = "0000:0000:0000:0000:0000:ffff:c000:0201";
        own.interface = interface;
        return port(device, 1, own);
    }
    SysfsTree& gid(const std::string& device, int number, int index, const std::string& gid,
                   const std::string& interface) {
        const std::string folder = device + "/ports/" + std::to_string(number);
        const std::string at = std::to_string(index);
        put(folder + "/gids/" + at, gid);
        if (!interface.empty()) {
            put(folder + "/gid_attrs/ndevs/" + at, interface);
        }
        return *this;
    }
    // A network interface of the same card, of the port with this number less one.
    SysfsTree& net(const std::string& device, const std::string& interface, int dev_port) {
        put(device + "/device/net/" + interface + "/dev_port", std::to_string(dev_port));
        return *this;
    }
    // An interface of the network namespace that the tree shows.
    SysfsTree& interface(const std::string& name) {
        std::filesystem::create_directories(root_ / "class/net" / name);
        return *this;
    }
    // Any file of a device's folder.
    SysfsTree& put(const std::string& path, const std::string& text) {
        const std::filesystem::path file = root_ / "class/infiniband" / path;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << text << "\n";
        return *this;
    }

    std::string root() const { return root_.string(); }

private:
    std::filesystem::path root_;
};

}  // namespace deft::test
