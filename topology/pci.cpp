// SPDX-License-Identifier: Apache-2.0
#include "topology/pci.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "base/unique_fd.h"

namespace deft {
namespace {

// "0000:10:1c.0"
bool pci_address(std::string_view text) {
    const std::size_t colon = text.find(':');
    return colon >= 4 && colon != std::string_view::npos && text.size() == colon + 8 &&
           text[colon + 3] == ':' && text[colon + 6] == '.';
}

// "pci0000:10"
bool host_bridge(std::string_view text) {
    return text.starts_with("pci") && text.size() >= 10 && text.find(':') != std::string_view::npos;
}

// A GPU of NVIDIA: a VGA or 3D controller.
bool nvidia_gpu(const std::string& folder) {
    std::string text;
    return read_sysfs(folder + "/vendor", text) && text == "0x10de" &&
           read_sysfs(folder + "/class", text) &&
           (text.starts_with("0x0300") || text.starts_with("0x0302"));
}

}  // namespace

const char* to_string(Distance distance) {
    switch (distance) {
        case Distance::Same:
            return "same";
        case Distance::Pix:
            return "PIX";
        case Distance::Pxb:
            return "PXB";
        case Distance::Phb:
            return "PHB";
        case Distance::Node:
            return "NODE";
        case Distance::Sys:
            return "SYS";
        case Distance::Unknown:
            return "?";
    }
    return "?";
}

Distance distance(const PciPlace& a, const PciPlace& b) {
    if (!a.known() || !b.known()) {
        return Distance::Unknown;
    }
    if (a.address == b.address) {
        return Distance::Same;
    }
    if (a.bridges.empty() || b.bridges.empty()) {
        return Distance::Unknown;
    }
    const std::size_t depth = std::min(a.bridges.size(), b.bridges.size());
    std::size_t common = 0;
    while (common < depth && a.bridges[common] == b.bridges[common]) {
        ++common;
    }
    if (common == 0) {
        // A host with one node may not say so.
        const bool apart = a.numa_node >= 0 && b.numa_node >= 0 && a.numa_node != b.numa_node;
        return apart ? Distance::Sys : Distance::Node;
    }
    if (common == 1) {
        return Distance::Phb;
    }
    // A switch is one upstream port with downstream ports below: one more bridge on each side.
    return a.bridges.size() - common <= 1 && b.bridges.size() - common <= 1 ? Distance::Pix
                                                                            : Distance::Pxb;
}

PciPlace pci_place(std::string_view folder, int numa_node) {
    PciPlace place;
    while (!folder.empty()) {
        const std::size_t slash = folder.find('/');
        const std::string_view part = folder.substr(0, slash);
        folder.remove_prefix(slash == std::string_view::npos ? folder.size() : slash + 1);
        if (host_bridge(part)) {
            place.bridges.assign(1, std::string(part));
            place.address.clear();
        } else if (pci_address(part) && !place.bridges.empty()) {
            if (place.known()) {
                place.bridges.push_back(place.address);
            }
            place.address = part;
        }
    }
    place.numa_node = place.known() ? numa_node : -1;
    return place;
}

bool read_sysfs(const std::string& path, std::string& line) {
    UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char buffer[256];
    const ssize_t got = file ? read(file.get(), buffer, sizeof(buffer)) : -1;
    if (got <= 0) {
        return false;
    }
    line.assign(buffer, static_cast<std::size_t>(got));
    line.resize(std::min(line.size(), line.find('\n')));
    return true;
}

std::vector<PciPlace> list_gpu_places(const std::string& root) {
    std::vector<PciPlace> found;
    const std::string devices = root + "/bus/pci/devices";
    DIR* directory = opendir(devices.c_str());
    if (directory == nullptr) {
        return found;
    }
    while (const dirent* entry = readdir(directory)) {
        const std::string folder = devices + "/" + entry->d_name;
        char resolved[PATH_MAX];
        if (!pci_address(entry->d_name) || !nvidia_gpu(folder) ||
            realpath(folder.c_str(), resolved) == nullptr) {
            continue;
        }
        std::string node;
        const bool known = read_sysfs(folder + "/numa_node", node);
        found.push_back(pci_place(resolved, known ? std::atoi(node.c_str()) : -1));
    }
    closedir(directory);
    std::sort(found.begin(), found.end(),
              [](const PciPlace& a, const PciPlace& b) { return a.address < b.address; });
    return found;
}

}  // namespace deft
