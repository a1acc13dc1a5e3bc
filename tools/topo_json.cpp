// SPDX-License-Identifier: Apache-2.0
// A host for programs.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/topo_command.h"
#include "tools/topo_matrix.h"
#include "topology/discovery/gpu_paths.h"
#include "topology/discovery/host_links.h"

namespace deft::tools {

using namespace discovery;
using nlohmann::json;

namespace {

// A matrix of more devices says nothing to anybody.
constexpr std::size_t kMostDevices = 256;

json place_json(const PciPlace& place) {
    return {{"pci", place.address}, {"numa_node", place.numa_node}, {"bridges", place.bridges}};
}

json nic_json(const Nic& nic) {
    json entry = place_json(nic.pci);
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

json nvlinks_json(const Gpu& gpu) {
    json all = json::array();
    for (const NvLinks& links : gpu.nvlinks) {
        all.push_back({{"to", to_string(links.end)},
                       {"target", links.target},
                       {"count", links.count},
                       {"gbytes_per_s", links.gbytes}});
    }
    return all;
}

json gpu_json(const Machine& machine, std::size_t number) {
    const Gpu& gpu = machine.gpus[number];
    json entry = place_json(gpu.pci);
    entry["model"] = gpu.model;
    entry["uuid"] = gpu.uuid;
    entry["compute_capability"] = gpu.sm;
    entry["pci_gbytes_per_s"] = gpu.pci_gbytes;
    entry["hidden"] = gpu.hidden;
    entry["nvlinks"] = nvlinks_json(gpu);
    entry["nvlink_source"] = gpu.nvlink_source;
    entry["c2c_gbytes_per_s"] = gpu.c2c_gbytes;
    if (!gpu.cluster.empty()) {
        entry["fabric"] = {{"cluster", gpu.cluster}, {"clique", gpu.clique}};
    }
    entry["distances"] = json::object();
    for (const Nic& nic : machine.nics) {
        entry["distances"][nic.name] = to_string(distance(gpu.pci, nic.pci));
    }
    entry["peers"] = json::array();
    for (std::size_t other = 0; other < machine.gpus.size(); ++other) {
        if (other == number) {
            continue;
        }
        const GpuPath path = gpu_path(machine, number, other);
        entry["peers"].push_back({{"gpu", other},
                                  {"path", path.text()},
                                  {"pci_distance", to_string(path.distance)},
                                  {"nvlinks", path.nvlinks},
                                  {"gbytes_per_s", path.gbytes},
                                  {"through", path.nvlinks == 0 ? ""
                                              : path.by_switch  ? "switch"
                                                                : "pair"}});
    }
    return entry;
}

json link_json(const HostLink& link) {
    json entry = place_json(link.pci);
    entry.update({{"name", link.name},
                  {"kind", link.kind},
                  {"speed_mbps", link.speed_mbps},
                  {"state", link.state},
                  {"addresses", link.addresses},
                  {"card", link.card},
                  {"transports", link.transports},
                  {"virtual_function", link.virtual_function},
                  {"driver", link.driver == Driver::Nobody ? "" : to_string(link.driver)},
                  {"reason", link.reason}});
    return entry;
}

json port_json(const RdmaPort& port) {
    json gids = json::array();
    for (const RdmaGid& gid : port.gids) {
        gids.push_back({{"index", gid.index},
                        {"gid", gid.gid},
                        {"type", gid.type},
                        {"interface", gid.interface},
                        {"here", gid.here}});
    }
    json entry = place_json(port.pci);
    entry.update({{"name", port.name()},
                  {"kind", port.kind()},
                  {"link_layer", port.layer},
                  {"state", port.state},
                  {"speed_mbps", port.speed_mbps},
                  {"interfaces", port.interfaces},
                  {"gids", gids},
                  {"card", port.card},
                  {"virtual_function", port.virtual_function},
                  {"physical_function", port.physical},
                  {"usable", port.usable()},
                  {"obstacle", port.obstacle}});
    return entry;
}

json matrix_json(const Machine& machine) {
    const std::vector<MatrixDevice> devices = matrix_devices(machine);
    json matrix = {{"devices", json::array()}, {"rows", json::array()}};
    if (devices.size() > kMostDevices) {
        return nullptr;
    }
    for (const MatrixDevice& row : devices) {
        matrix["devices"].push_back({{"label", row.label}, {"name", row.name}});
        json cells = json::array();
        for (const MatrixDevice& column : devices) {
            cells.push_back(matrix_cell(machine, row, column));
        }
        matrix["rows"].push_back(cells);
    }
    return matrix;
}

}  // namespace

std::string topo_json(const Machine& machine) {
    const InsideRate inside = inside_rate(machine);
    json all = {{"format", "deft-topo"},
                {"version", 1},
                {"source", machine.source},
                {"live", machine.live},
                {"host", machine.host},
                {"hosts", machine.hosts},
                {"numa_nodes", machine.numa_nodes},
                {"notes", machine.notes},
                {"gpus", json::array()},
                {"nics", json::array()},
                {"links", json::array()},
                {"rdma_ports", json::array()},
                {"devices", json::array()},
                {"carrier", carrier_of(machine)},
                {"inside", {{"gbytes_per_s", inside.gbytes}, {"nvlink", inside.nvlink}}},
                {"matrix", matrix_json(machine)}};
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
        all["gpus"].push_back(gpu_json(machine, i));
    }
    for (const Nic& nic : machine.nics) {
        all["nics"].push_back(nic_json(nic));
    }
    for (const HostLink& link : host_links(machine)) {
        all["links"].push_back(link_json(link));
    }
    for (const RdmaPort& port : machine.rdma.ports) {
        all["rdma_ports"].push_back(port_json(port));
    }
    for (const ShownDevice& device : machine.devices) {
        all["devices"].push_back({{"name", device.name},
                                  {"links", device.links},
                                  {"nearest", device.nearest},
                                  {"speed_mbps", device.speed_mbps},
                                  {"shared", device.shared}});
    }
    if (machine.ucx.asked) {
        all["ucx"] = {{"version", machine.ucx.version},
                      {"module", machine.ucx.module},
                      {"problem", machine.ucx.problem},
                      {"devices", machine.ucx.devices}};
    }
    if (!machine.problem.empty()) {
        all["problem"] = machine.problem;
    }
    return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace deft::tools
