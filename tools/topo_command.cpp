// SPDX-License-Identifier: Apache-2.0
#include "tools/topo_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/config.h"
#include "tools/input_file.h"
#include "tools/text_output.h"
#include "topology/link_relations.h"

namespace deft::tools {

using namespace discovery;

namespace {

constexpr std::size_t kLargestFile = std::size_t{64} << 20;

using Row = std::vector<std::string>;

// Columns as wide as their widest cell; every line begins with `indent` spaces.
std::string table(const std::vector<Row>& rows, std::size_t indent) {
    std::vector<std::size_t> widths;
    for (const Row& row : rows) {
        widths.resize(std::max(widths.size(), row.size()));
        for (std::size_t i = 0; i < row.size(); ++i) {
            widths[i] = std::max(widths[i], row[i].size());
        }
    }
    std::string text;
    for (const Row& row : rows) {
        std::string line(indent, ' ');
        for (std::size_t i = 0; i < row.size(); ++i) {
            line += fmt::format("{:<{}}", row[i], widths[i] + 2);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

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

std::string rate(double gbytes) {
    return gbytes > 0 ? fmt::format("{:.1f}", gbytes) : "?";
}

std::string gpu_table(const Machine& machine) {
    std::vector<Row> rows = {{"GPU", "PCI", "NUMA", "GB/s", "model"}};
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
        const Gpu& gpu = machine.gpus[i];
        rows.push_back({fmt::format("gpu{}", i), gpu.pci.address, node(gpu.pci.numa_node),
                        rate(gpu.pci_gbytes), or_dash(gpu.model)});
    }
    return table(rows, 2);
}

std::string nic_table(const Machine& machine) {
    std::vector<Row> rows = {{"NIC", "RDMA", "kind", "PCI", "NUMA", "speed", "state", "use", ""}};
    for (const Nic& nic : machine.nics) {
        rows.push_back({printable(nic.name), or_dash(nic.rdma), nic.kind, or_dash(nic.pci.address),
                        node(nic.pci.numa_node), speed(nic.speed_mbps), nic.state,
                        nic.link.empty() ? "no" : nic.link,
                        nic.link.empty()
                            ? nic.reason
                            : printable(fmt::format("{}", fmt::join(nic.addresses, " ")))});
    }
    return table(rows, 2);
}

std::string distance_table(const Machine& machine) {
    std::vector<Row> rows(1);
    rows[0].emplace_back("");
    for (const Nic& nic : machine.nics) {
        if (nic.pci.known()) {
            rows[0].push_back(printable(nic.name));
        }
    }
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
        Row& row = rows.emplace_back();
        row.push_back(fmt::format("gpu{}", i));
        for (const Nic& nic : machine.nics) {
            if (nic.pci.known()) {
                row.emplace_back(to_string(distance(machine.gpus[i].pci, nic.pci)));
            }
        }
    }
    return rows.size() > 1 && rows[0].size() > 1 ? table(rows, 2) : "";
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

std::string rdma_text(const RdmaChoice& rdma) {
    std::vector<Row> rows = {{"port", "link layer", "speed", "interfaces", ""}};
    for (const RdmaPort& port : rdma.ports) {
        rows.push_back({printable(port.name()), port.ethernet() ? "Ethernet" : "InfiniBand",
                        speed(port.speed_mbps),
                        or_dash(fmt::format("{}", fmt::join(port.interfaces, " "))),
                        port.usable() ? "usable" : printable(port.obstacle)});
    }
    return table(rows, 2);
}

// Who carries a job of this host.
const char* carrier_of(const Machine& machine) {
    switch (machine.rdma.use) {
        case RdmaUse::None:
            return "deft's links carry the job";
        case RdmaUse::Aside:
            return machine.devices.empty()
                       ? "NCCL's IB carries the job; deft has no link apart from it"
                       : "NCCL's IB carries the job, deft's links serve lanes";
        case RdmaUse::Replace:
            return "deft's TCP links carry the job in the place of NCCL's IB";
    }
    return "";
}

nlohmann::json place_json(const PciPlace& place) {
    return {{"pci", place.address}, {"numa_node", place.numa_node}, {"bridges", place.bridges}};
}

}  // namespace

std::string topo_text(const Machine& machine) {
    std::string text = printable(machine.source) + "\n";
    if (machine.hosts > 1) {
        text += fmt::format("  host {} of the {} in this file; --host shows another\n",
                            machine.host, machine.hosts);
    }
    text += "  " + numa_text(machine.numa_nodes) + "\n";
    text += machine.gpus.empty() ? "\nno NVIDIA GPU\n" : "\nGPUs\n" + gpu_table(machine);
    text += "\nNetwork\n" + nic_table(machine);
    if (const std::string distances = distance_table(machine); !distances.empty()) {
        text +=
            "\nFrom GPU to NIC (PIX one PCI switch, PXB several, PHB host bridge, NODE NUMA "
            "node, SYS beyond)\n" +
            distances;
    }
    if (!machine.rdma.ports.empty()) {
        text += "\nRDMA ports\n" + rdma_text(machine.rdma) + "  " + carrier_of(machine) + " (" +
                printable(machine.rdma.reason) + ")\n";
    }
    text += "\nWhat NCCL is shown\n";
    text += machine.devices.empty() ? "  nothing\n" : device_table(machine);
    text += unknown_speeds(machine);
    if (machine.devices.size() > 1 && machine.devices[0].shared) {
        text += "  Each device uses all links; they share one speed.\n";
    }
    if (!machine.live) {
        text +=
            "  If these interfaces are up with an address. Names, states and addresses are not "
            "in the file.\n";
    }
    return text;
}

namespace {

nlohmann::json nic_json(const Nic& nic) {
    nlohmann::json entry = place_json(nic.pci);
    entry.update({{"name", nic.name},
                  {"rdma", nic.rdma},
                  {"kind", nic.kind},
                  {"model", nic.model},
                  {"pci_gbytes_per_s", nic.pci_gbytes},
                  {"speed_mbps", nic.speed_mbps},
                  {"nominal_mbps", nic.nominal_mbps},
                  {"state", nic.state},
                  {"addresses", nic.addresses},
                  {"used", !nic.link.empty()},
                  {"link", nic.link},
                  {"reason", nic.reason}});
    return entry;
}

}  // namespace

std::string topo_json(const Machine& machine) {
    nlohmann::json all = {{"format", "deft-topo"},
                          {"version", 1},
                          {"source", machine.source},
                          {"live", machine.live},
                          {"host", machine.host},
                          {"hosts", machine.hosts},
                          {"numa_nodes", machine.numa_nodes},
                          {"gpus", nlohmann::json::array()},
                          {"nics", nlohmann::json::array()},
                          {"devices", nlohmann::json::array()}};
    for (const Gpu& gpu : machine.gpus) {
        nlohmann::json entry = place_json(gpu.pci);
        entry["model"] = gpu.model;
        entry["pci_gbytes_per_s"] = gpu.pci_gbytes;
        entry["distances"] = nlohmann::json::object();
        for (const Nic& nic : machine.nics) {
            entry["distances"][nic.name] = to_string(distance(gpu.pci, nic.pci));
        }
        all["gpus"].push_back(entry);
    }
    for (const Nic& nic : machine.nics) {
        all["nics"].push_back(nic_json(nic));
    }
    for (const ShownDevice& device : machine.devices) {
        all["devices"].push_back({{"name", device.name},
                                  {"links", device.links},
                                  {"nearest", device.nearest},
                                  {"speed_mbps", device.speed_mbps},
                                  {"shared", device.shared}});
    }
    if (machine.live) {
        all["carrier"] = carrier_of(machine);
        all["rdma_ports"] = nlohmann::json::array();
        for (const RdmaPort& port : machine.rdma.ports) {
            all["rdma_ports"].push_back(
                {{"name", port.name()},
                 {"link_layer", port.ethernet() ? "Ethernet" : "InfiniBand"},
                 {"speed_mbps", port.speed_mbps},
                 {"interfaces", port.interfaces},
                 {"usable", port.usable()},
                 {"obstacle", port.obstacle}});
        }
    }
    if (!machine.problem.empty()) {
        all["problem"] = machine.problem;
    }
    return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

bool read_machine_file(const std::string& path, std::size_t host, Machine& machine,
                       std::string& problem) {
    std::string text;
    std::string why;
    if (read_input(path, kLargestFile, text, why) &&
        read_machine_text(path, text, host, machine, why)) {
        return true;
    }
    problem = path + ": " + why;
    return false;
}

int topo(const TopoOptions& options) {
    Machine machine;
    if (!options.input.empty()) {
        std::string problem;
        if (!read_machine_file(options.input, options.host, machine, problem)) {
            complain(problem);
            return kProblem;
        }
    } else {
        for (const std::string& problem : Config::process().problems()) {
            complain(problem);
            return kProblem;
        }
        machine = this_machine();
    }
    const int printed = print(options.json ? topo_json(machine) : topo_text(machine));
    if (!machine.problem.empty()) {
        complain(machine.problem);
        return kProblem;
    }
    return printed;
}

}  // namespace deft::tools
