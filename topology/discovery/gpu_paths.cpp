// SPDX-License-Identifier: Apache-2.0
#include "topology/discovery/gpu_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace deft::discovery {
namespace {

// Of nominal rates, what NCCL's transfers reach: 20 of 25 GB/s of an A100's NVLink, 12 of 15.8 of
// sixteen lanes of PCI Gen 3.
constexpr double kNvLinkYield = 0.8;
constexpr double kPciYield = 0.76;
constexpr double kUnknownPci = 12;

// The GPU's links that lead to a device `counts` picks, as one.
template <class Counts>
NvLinks sum(const Gpu& gpu, Counts&& counts) {
    NvLinks all;
    for (const NvLinks& links : gpu.nvlinks) {
        if (counts(links)) {
            all.count += links.count;
            all.gbytes += links.gbytes;
        }
    }
    return all;
}

NvLinks to_gpu(const Gpu& from, const Gpu& to) {
    return sum(from, [&](const NvLinks& links) {
        return links.end == NvLinkEnd::Gpu && links.target == to.pci.address;
    });
}

NvLinks to_switches(const Gpu& gpu) {
    return sum(gpu, [](const NvLinks& links) { return links.end == NvLinkEnd::Switch; });
}

// True if NVLink leads from the first GPU to all others, over as many GPUs as it takes.
bool connected(const Machine& machine) {
    std::vector<bool> reached(machine.gpus.size(), false);
    std::vector<std::size_t> open = {0};
    reached[0] = true;
    std::size_t count = 1;
    while (!open.empty()) {
        const std::size_t at = open.back();
        open.pop_back();
        for (std::size_t next = 0; next < machine.gpus.size(); ++next) {
            if (!reached[next] && gpu_path(machine, at, next).nvlinks > 0) {
                reached[next] = true;
                ++count;
                open.push_back(next);
            }
        }
    }
    return count == machine.gpus.size();
}

}  // namespace

std::string GpuPath::text() const {
    return nvlinks > 0 ? fmt::format("NV{}", nvlinks) : deft::to_string(distance);
}

GpuPath gpu_path(const Machine& machine, std::size_t from, std::size_t to) {
    const Gpu& a = machine.gpus[from];
    const Gpu& b = machine.gpus[to];
    GpuPath path;
    path.distance = distance(a.pci, b.pci);
    if (from == to) {
        return path;
    }
    const NvLinks there = to_gpu(a, b);
    const NvLinks back = to_gpu(b, a);
    NvLinks direct = there.count >= back.count ? there : back;  // a file may tell one side only
    if (direct.count == 0) {
        const NvLinks up = to_switches(a);
        const NvLinks down = to_switches(b);
        if (up.count > 0 && down.count > 0) {
            path.by_switch = true;
            direct.count = std::min(up.count, down.count);
            direct.gbytes = std::min(up.gbytes, down.gbytes);
        }
    }
    path.nvlinks = direct.count;
    path.gbytes = direct.gbytes;
    return path;
}

InsideRate inside_rate(const Machine& machine) {
    InsideRate rate;
    if (machine.gpus.empty()) {
        return rate;
    }
    double nvlink = 0;
    double pci = 0;
    for (const Gpu& gpu : machine.gpus) {
        const NvLinks links = sum(gpu, [](const NvLinks& each) {
            return each.end == NvLinkEnd::Gpu || each.end == NvLinkEnd::Switch;
        });
        const double own = links.gbytes * (gpu.nvlink_source == "nccl" ? 1 : kNvLinkYield);
        const double lanes = gpu.pci_gbytes > 0 ? gpu.pci_gbytes * kPciYield : kUnknownPci;
        const bool first = &gpu == &machine.gpus.front();
        nvlink = first ? own : std::min(nvlink, own);
        pci = first ? lanes : std::min(pci, lanes);
    }
    rate.nvlink = nvlink > 0 && connected(machine);
    rate.gbytes = rate.nvlink ? nvlink : pci;
    rate.how = rate.nvlink ? fmt::format("NVLink of {} GPUs", machine.gpus.size())
                           : fmt::format("PCI of {} GPUs", machine.gpus.size());
    return rate;
}

}  // namespace deft::discovery
