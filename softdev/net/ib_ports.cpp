// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/ib_ports.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace softdev::net {
namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

std::vector<fs::path> entries(const fs::path& folder) {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        found.push_back(entry->path());
    }
    std::sort(found.begin(), found.end());
    return found;
}

// NCCL: "^" excludes, "=" exact names, NAME or NAME:PORT, else prefixes; no list takes all.
bool taken(std::string list, const std::string& device, int port) {
    const bool excludes = list.starts_with('^');
    list.erase(0, excludes ? 1 : 0);
    const bool exact = list.starts_with('=');
    list.erase(0, exact ? 1 : 0);
    std::istringstream items(list);
    bool any = false;
    bool found = false;
    for (std::string item; std::getline(items, item, ',');) {
        const size_t colon = item.find(':');
        const std::string name = item.substr(0, colon);
        const int number = colon == item.npos ? -1 : std::atoi(item.c_str() + colon + 1);
        if (!name.empty()) {
            any = true;
        }
        if (!name.empty() && (exact ? device == name : device.starts_with(name)) &&
            (number == -1 || number == port)) {
            found = true;
        }
    }
    return (!any || found) != excludes;
}

std::string interface_of(const fs::path& device, const fs::path& port) {
    for (const fs::path& entry : entries(port / "gid_attrs/ndevs")) {
        if (const std::string name = line_of(entry); !name.empty()) {
            return name;
        }
    }
    const std::vector<fs::path> own = entries(device / "device/net");
    return own.empty() ? "" : own.front().filename().string();
}

}  // namespace

std::vector<Interface> find_ib_ports() {
    const char* const root = std::getenv("SOFTDEV_SYSFS");
    const char* const disabled = std::getenv("NCCL_IB_DISABLE");
    if (root == nullptr || *root == '\0' || (disabled != nullptr && std::atoi(disabled) != 0)) {
        return {};
    }
    const char* const named = std::getenv("NCCL_IB_HCA");
    std::vector<Interface> ports;
    for (const fs::path& device : entries(fs::path(root) / "class/infiniband")) {
        for (const fs::path& port : entries(device / "ports")) {
            const std::string layer = line_of(port / "link_layer");
            const int number = std::atoi(port.filename().c_str());
            if (line_of(port / "state").find("ACTIVE") == std::string::npos ||
                (layer != "InfiniBand" && layer != "Ethernet") ||
                !taken(named != nullptr ? named : "", device.filename(), number)) {
                continue;
            }
            const std::string interface = interface_of(device, port);
            const std::vector<Interface> found =
                interface.empty() ? find_interfaces() : select_interfaces("=" + interface);
            if (found.empty()) {
                continue;
            }
            Interface one = found.front();
            one.name = device.filename().string() + ":" + port.filename().string();
            one.speed_mbps = static_cast<int>(std::atof(line_of(port / "rate").c_str()) * 1000);
            one.faults = false;
            std::error_code error;
            one.pci_path = fs::canonical(device / "device", error);
            ports.push_back(one);
        }
    }
    return ports;
}

}  // namespace softdev::net
