// SPDX-License-Identifier: Apache-2.0
#include "tools/topo_gpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/text_output.h"
#include "tools/text_table.h"
#include "topology/discovery/gpu_paths.h"

namespace deft::tools {

using namespace discovery;

namespace {

std::string rate(double gbytes) {
    return gbytes > 0 ? fmt::format("{:.1f}", gbytes) : "?";
}

// "12 to NVSwitch, 1 to CPU"; "6 to 4 GPUs".
std::string links_of(const Gpu& gpu) {
    std::map<NvLinkEnd, std::pair<int, int>> kinds;  // links, ends
    for (const NvLinks& links : gpu.nvlinks) {
        kinds[links.end].first += links.count;
        ++kinds[links.end].second;
    }
    std::vector<std::string> parts;
    for (const auto& [end, kind] : kinds) {
        const auto [links, ends] = kind;
        switch (end) {
            case NvLinkEnd::Gpu:
                parts.push_back(fmt::format("{} to {} GPU{}", links, ends, ends == 1 ? "" : "s"));
                break;
            case NvLinkEnd::Switch:
                parts.push_back(fmt::format("{} to NVSwitch", links));
                break;
            case NvLinkEnd::Cpu:
                parts.push_back(fmt::format("{} to CPU", links));
                break;
            case NvLinkEnd::Other:
                parts.push_back(fmt::format("{} elsewhere", links));
                break;
        }
    }
    if (gpu.c2c_gbytes > 0) {
        parts.push_back(fmt::format("C2C {:.0f} GB/s", gpu.c2c_gbytes));
    }
    return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, ", "));
}

// Pairs of GPUs, as many as fit on a line.
std::string pairs_text(const std::vector<std::string>& pairs, std::size_t all) {
    constexpr std::size_t kMost = 8;
    if (pairs.size() == all && all > 1) {
        return fmt::format("all {} pairs", all);
    }
    const auto end = pairs.begin() + static_cast<std::ptrdiff_t>(std::min(pairs.size(), kMost));
    std::string text = fmt::format("{}", fmt::join(pairs.begin(), end, " "));
    if (pairs.size() > kMost) {
        text += fmt::format(" and {} more", pairs.size() - kMost);
    }
    return text;
}

}  // namespace

std::string gpu_table(const Machine& machine) {
    std::vector<Row> rows = {{"GPU", "PCI", "NUMA", "PCI GB/s", "NVLinks", "model"}};
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
        const Gpu& gpu = machine.gpus[i];
        const std::string model = gpu.model.empty() ? "-" : printable(gpu.model);
        rows.push_back({fmt::format("GPU{}", i), printable(gpu.pci.address),
                        gpu.pci.numa_node < 0 ? "-" : std::to_string(gpu.pci.numa_node),
                        rate(gpu.pci_gbytes), links_of(gpu),
                        gpu.hidden ? model + " (not given to this process)" : model});
    }
    return table(rows, 2);
}

std::string nvlink_text(const Machine& machine) {
    // By number of links, rate, and whether a switch is between; the most links first.
    std::map<std::tuple<int, double, bool>, std::vector<std::string>, std::greater<>> groups;
    std::size_t all = 0;
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
        for (std::size_t j = i + 1; j < machine.gpus.size(); ++j) {
            const GpuPath path = gpu_path(machine, i, j);
            groups[{path.nvlinks, path.gbytes, path.by_switch}].push_back(
                fmt::format("GPU{}-GPU{}", i, j));
            ++all;
        }
    }
    if (groups.empty() || std::get<0>(groups.begin()->first) == 0) {
        return "";
    }
    std::vector<Row> rows;
    for (const auto& [path, pairs] : groups) {
        const auto [nvlinks, gbytes, by_switch] = path;
        rows.push_back({nvlinks > 0 ? fmt::format("NV{}", nvlinks) : "-",
                        nvlinks > 0 ? rate(gbytes) + " GB/s" : "",
                        nvlinks == 0 ? "no NVLink"
                        : by_switch  ? "by NVSwitch"
                                     : "wired in pairs",
                        pairs_text(pairs, all)});
    }
    const bool counted = std::any_of(machine.gpus.begin(), machine.gpus.end(),
                                     [](const Gpu& gpu) { return gpu.nvlink_source == "nccl"; });
    return fmt::format("\nNVLink between GPUs, one way ({})\n{}",
                       counted ? "as NCCL counts each link" : "nominal", table(rows, 2));
}

std::string domain_text(const Machine& machine) {
    std::map<std::pair<std::string, unsigned>, std::size_t> domains;
    bool switched = false;
    for (const Gpu& gpu : machine.gpus) {
        if (!gpu.cluster.empty()) {
            ++domains[{gpu.cluster, gpu.clique}];
        }
        for (const NvLinks& links : gpu.nvlinks) {
            if (links.end == NvLinkEnd::Switch) {
                switched = true;
            }
        }
    }
    std::string text;
    for (const auto& [domain, gpus] : domains) {
        text += fmt::format(
            "  NVLink domain {}, clique {}: {} GPU{} here; NVLink joins all hosts with the same\n",
            printable(domain.first), domain.second, gpus, gpus == 1 ? "" : "s");
    }
    if (text.empty() && switched && machine.hosts > 1) {
        text =
            fmt::format("  NVLink reaches the GPUs of all {} hosts of this file\n", machine.hosts);
    }
    return text;
}

}  // namespace deft::tools
