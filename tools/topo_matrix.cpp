// SPDX-License-Identifier: Apache-2.0
#include "tools/topo_matrix.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/text_output.h"
#include "tools/text_table.h"
#include "topology/discovery/gpu_paths.h"

namespace deft::tools {

using discovery::Machine;
using discovery::Nic;

namespace {

// More cards than this are shown in groups, if not all of the matrix is asked for.
constexpr std::size_t kManyCards = 12;

// Neighbouring cards at the same distance from every GPU.
struct Group {
    std::size_t first = 0;  // positions among the devices
    std::size_t last = 0;
};

std::vector<Group> groups_of(const Machine& machine, const std::vector<MatrixDevice>& devices,
                             bool whole) {
    const std::size_t gpus = machine.gpus.size();
    const auto alike = [&](std::size_t a, std::size_t b) {
        for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
            if (matrix_cell(machine, devices[gpu], devices[a]) !=
                matrix_cell(machine, devices[gpu], devices[b])) {
                return false;
            }
        }
        return true;
    };
    const bool merge = !whole && devices.size() - gpus > kManyCards;
    std::vector<Group> groups;
    for (std::size_t i = 0; i < devices.size(); ++i) {
        if (merge && i > gpus && alike(groups.back().first, i)) {
            groups.back().last = i;
        } else {
            groups.push_back({i, i});
        }
    }
    return groups;
}

std::string label_of(const std::vector<MatrixDevice>& devices, const Group& group) {
    return group.first == group.last ? devices[group.first].label
                                     : fmt::format("{}-{}", devices[group.first].label,
                                                   devices[group.last].label.substr(3));
}

}  // namespace

std::vector<MatrixDevice> matrix_devices(const Machine& machine) {
    std::vector<MatrixDevice> devices;
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
        devices.push_back({fmt::format("GPU{}", i), "", machine.gpus[i].pci, i, true});
    }
    std::size_t cards = 0;
    for (const Nic& nic : machine.nics) {
        const bool again = std::any_of(
            devices.begin(), devices.end(),
            [&](const MatrixDevice& other) { return other.pci.address == nic.pci.address; });
        if (nic.pci.known() && !again) {
            devices.push_back(
                {fmt::format("NIC{}", cards++), nic.rdma.empty() ? nic.name : nic.rdma, nic.pci});
        }
    }
    return devices;
}

std::string matrix_cell(const Machine& machine, const MatrixDevice& row,
                        const MatrixDevice& column) {
    if (row.label == column.label) {
        return "X";
    }
    return row.is_gpu && column.is_gpu ? discovery::gpu_path(machine, row.gpu, column.gpu).text()
                                       : to_string(distance(row.pci, column.pci));
}

std::string matrix_text(const Machine& machine, bool whole) {
    const std::vector<MatrixDevice> devices = matrix_devices(machine);
    if (devices.empty()) {
        return "";
    }
    const std::vector<Group> groups = groups_of(machine, devices, whole);
    const bool merged = groups.size() != devices.size();
    std::vector<Row> rows(1, Row{""});
    for (const Group& group : groups) {
        rows[0].push_back(label_of(devices, group));
    }
    rows[0].emplace_back("NUMA");
    for (const MatrixDevice& device : devices) {
        if (merged && !device.is_gpu) {
            break;
        }
        Row& row = rows.emplace_back(Row{device.label});
        for (const Group& group : groups) {
            row.push_back(matrix_cell(machine, device, devices[group.first]));
        }
        row.push_back(device.pci.numa_node < 0 ? "-" : std::to_string(device.pci.numa_node));
    }
    std::string text = table(rows, 2);
    std::string names;
    for (const Group& group : groups) {
        for (std::size_t i = group.first; i <= group.last && !devices[group.first].is_gpu; ++i) {
            names += i == group.first ? fmt::format("  {}:", label_of(devices, group)) : "";
            names += " " + printable(devices[i].name) + (i == group.last ? "\n" : "");
        }
    }
    text += names.empty() ? "" : "\n" + names;
    text +=
        "\n  X itself, NV# that many NVLinks, PIX one PCI switch, PXB several, PHB a host bridge,\n"
        "  NODE host bridges of one NUMA node, SYS beyond it, ? not known\n";
    return text;
}

}  // namespace deft::tools
