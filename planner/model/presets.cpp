// SPDX-License-Identifier: Apache-2.0
#include "planner/model/presets.h"

#include <algorithm>
#include <stdexcept>

#include "planner/model/collective.h"

namespace deft::planner {
namespace {

constexpr const char* kDdl =
    "HKBU-HPML ddl-benchmarks 2020, BSP rows of ResNet-50 and BERT-Base at 8 to 32 GPUs, 4 per "
    "node";
constexpr const char* kEfa =
    "nccl-tests on 4 p4d nodes of 8 A100 and four 100 Gb/s EFA NICs (NVIDIA/nccl issue 527)";
constexpr const char* kNdr = "nccl-tests on two nodes of one H100 (NVIDIA/nccl-tests issue 232)";
constexpr const char* kA100 =
    "nccl-tests on one node of 8 A100 with NVLink (ml-engineering network benchmarks)";
constexpr const char* kHdr =
    "nccl-tests on two nodes of 8 A100 with four 200 Gb/s HDR ports each: 91 GB/s at 1 to 8 GiB "
    "(NVIDIA/nccl-tests issue 100); on three: 84.8 GB/s on average over 1 to 128 MiB, 96 at most "
    "(issue 119); steps: NCCL's own model (src/graph/tuning.cc)";
constexpr const char* kNdrPair =
    "nccl-tests on two nodes of 8 H20 with NVLink SHARP and eight 400 Gb/s NDR ports each, 1 to "
    "512 MiB (NVIDIA/nccl issue 1244)";
constexpr const char* kNdrNodes =
    "nccl-tests on 248 nodes of 8 H200: 350 GB/s at 512 MiB (nccl-tests issue 283); 48 GB/s a port "
    "(issue 290); start-up: two nodes (NVIDIA/nccl issue 1244); steps: NCCL's own model "
    "(src/graph/tuning.cc)";
constexpr const char* kH200 = "nccl-tests on one node of 8 H200 with NVSwitch (ml-engineering)";

// Microseconds at sizes from 32 KiB.
const CostPoint kA100Points[] = {
    {32768, 43.8e-6},      {131072, 51.8e-6},        {524288, 80.4e-6},      {1048576, 101.7e-6},
    {4194304, 101.7e-6},   {8388608, 133.5e-6},      {16777216, 276.6e-6},   {33554432, 424e-6},
    {67108864, 684.6e-6},  {134217728, 1327.6e-6},   {268435456, 2420.6e-6}, {536870912, 4218e-6},
    {1073741824, 8204e-6}, {2147483648.0, 16240e-6},
};

// From 64 to 128 MiB the time more than doubles: NCCL takes another algorithm there. 2 and 4 MiB
// took 129.8 and 127.6 us; a curve does not fall.
const CostPoint kNdrPairPoints[] = {
    {0x1p20, 121.8e-6},  {0x1p21, 127.6e-6},  {0x1p22, 127.6e-6}, {0x1p23, 146.5e-6},
    {0x1p24, 203.0e-6},  {0x1p25, 298.5e-6},  {0x1p26, 467.9e-6}, {0x1p27, 1108.0e-6},
    {0x1p28, 2055.4e-6}, {0x1p29, 3218.6e-6},
};

// Bus bandwidths turned into times: bytes * 2(n-1)/n / busbw with n = 8.
constexpr double h200(double bytes, double bus) {
    return bytes * 1.75 / bus;
}
const CostPoint kH200Points[] = {
    {1048576, h200(1048576, 40e9)},
    {8388608, h200(8388608, 155e9)},
    {33554432, h200(33554432, 276e9)},
    {268435456, h200(268435456, 437e9)},
    {17179869184.0, h200(17179869184.0, 482e9)},
};

}  // namespace

const std::vector<LinkPreset>& link_presets() {
    constexpr double kKiB = 1 << 10;
    constexpr double kMiB = 1 << 20;
    constexpr double kGiB = 1 << 30;
    static const std::vector<LinkPreset> kPresets = {
        // The fit's messages: the tensors of ResNet-50 and BERT-Base one by one, and all in one.
        {"10GbE", 8, 32, 4, 256, 440e6,
         "1.16 GB/s per rank ring over TCP: ddl-benchmarks, 1.11-1.22 GB/s"},
        {"10GbE-gloo", 8, 32, 4, 256, 440e6,
         "10GbE slowed by 1.65: the second link of the DeFT paper (from memory)"},
        {"100Gb-IB", 8, 32, 4, 256, 440e6,
         "4.5 GB/s per rank ring: ddl-benchmarks, 4.45-6.3 GB/s, bound inside the node"},
        {"56Gb-IB", 8, 64, 4, 0, 0, "start-up and rate stored in dear_pytorch for 8 to 64 GPUs"},
        {"100Gb-NIC", 32, 32, 8, kGiB, kGiB,
         "7.4 GB/s per 100 Gb/s EFA NIC: a quarter of what 4 p4d nodes reached with four"},
        {"4x100Gb-EFA", 32, 32, 8, kGiB, kGiB,
         "29.6 GB/s bus rate: nccl-tests, 1 GiB on 4 p4d nodes (NVIDIA/nccl issue 527)"},
        {"400Gb-IB", 2, 2, 1, 2 * kMiB, 32 * kMiB,
         "41 GB/s bus rate: nccl-tests, 32 MiB, one H100 a node (NVIDIA/nccl-tests issue 232)"},
        {"a100-4x200Gb-IB", 16, 24, 8, kMiB, 8 * kGiB,
         "nodes of 8 A100 with NVLink: 94 GB/s bus rate, 2 and 3 nodes (nccl-tests issues 100, "
         "119)"},
        {"h100-8x400Gb-IB", 16, 1984, 8, 512 * kMiB, 512 * kMiB,
         "nodes of 8 H20 to H200 with NVLink: curve of 2 nodes, 1 to 512 MiB (nccl issue 1244); of "
         "more 350 GB/s bus rate: 248 nodes, 512 MiB (nccl-tests issue 283)",
         true},
        {"nvlink-a100", 8, 8, 8, 32 * kKiB, 2 * kGiB,
         "8 A100: measured curve, 32 KiB to 2 GiB, 134 GB/s at the end"},
        {"nvlink-h200", 8, 8, 8, kMiB, 16 * kGiB, "8 H200: measured curve, 1 MiB to 16 GiB"},
    };
    return kPresets;
}

namespace {

template <std::size_t n>
Link curve(const std::string& label, const CostPoint (&points)[n], const char* source) {
    Link link;
    link.name = label;
    link.cost.points.assign(std::begin(points), std::end(points));
    link.source = source;
    return link;
}

Link measured_link(const std::string& label, std::uint32_t ranks, std::uint32_t per_node) {
    const std::string_view name = label;
    if (name == "10GbE" || name == "10GbE-gloo") {
        // Start-ups stored in dear_pytorch: 0.52 ms at 8, 0.91 ms at 16, nodes of 4.
        const double slow = name == "10GbE" ? 1 : 1.65;
        Link link = nccl_link(label, ranks, per_node, 5e-6 * slow, 105e-6 * slow, 1.16e9 / slow);
        link.source = kDdl;
        return link;
    }
    if (name == "100Gb-IB") {
        Link link = nccl_link(label, ranks, per_node, 3e-6, 12e-6, 4.5e9);
        link.source = kDdl;
        return link;
    }
    if (name == "56Gb-IB") {
        const struct {
            std::uint32_t ranks;
            double alpha, beta;
        } rows[] = {{8, 9.75e-5, 3.06e-10},
                    {16, 7.08e-4, 4.06e-10},
                    {32, 4.06e-4, 4.91e-10},
                    {64, 8.06e-4, 5.89e-10}};
        Link link;
        link.name = label;
        link.source = "dear_pytorch, fitted start-up and rate (some carry hand factors)";
        const auto* row = std::find_if(std::begin(rows), std::end(rows) - 1,
                                       [&](const auto& r) { return ranks <= r.ranks; });
        link.cost.alpha = row->alpha;
        link.cost.beta = row->beta;
        return link;
    }
    if (name == "100Gb-NIC" || name == "4x100Gb-EFA") {
        // 0.6 ms of start-up over 4 nodes of 8.
        const double rate = name == "100Gb-NIC" ? 29.6e9 / 4 : 29.6e9;
        Link link = nccl_link(label, ranks, per_node, 4e-6, 50e-6, rate);
        link.source = kEfa;
        return link;
    }
    if (name == "400Gb-IB") {
        // 113 us at 2 MiB, 154 at 4, 231 at 8, 421 at 16, 812 at 32, all between two ranks.
        Link link = nccl_link(label, ranks, per_node, 3e-6, 25e-6, 41.3e9);
        link.source = kNdr;
        return link;
    }
    const bool alone = ranks <= per_node;  // on one node
    if (name == "nvlink-a100" || (name == "a100-4x200Gb-IB" && alone)) {
        return curve(label, kA100Points, kA100);
    }
    if (name == "nvlink-h200" || (name == "h100-8x400Gb-IB" && alone)) {
        return curve(label, kH200Points, kH200);
    }
    if (name == "a100-4x200Gb-IB") {
        Link link = nccl_link(label, ranks, per_node, 4e-6, 14e-6, 94e9);
        link.source = kHdr;
        return link;
    }
    if (name == "h100-8x400Gb-IB" && ranks == 2 * per_node) {
        return curve(label, kNdrPairPoints, kNdrPair);
    }
    if (name == "h100-8x400Gb-IB") {
        // Two nodes take 115 us for what moves next to nothing of a rate: 87 us less two steps.
        Link link = nccl_link(label, ranks, per_node, 4e-6, 14e-6, 384e9, 87e-6);
        link.source = kNdrNodes;
        return link;
    }
    throw std::invalid_argument("no link is called \"" + label + "\"");
}

}  // namespace

Link preset_link(std::string_view name, std::uint32_t ranks) {
    const std::string label(name);
    ranks = std::max(ranks, 2U);
    for (const LinkPreset& preset : link_presets()) {
        if (name != preset.name) {
            continue;
        }
        Link link = measured_link(label, ranks, preset.per_node);
        const bool curve = !link.cost.points.empty();
        link.least_bytes = curve ? link.cost.points.front().bytes : preset.least_bytes;
        link.most_bytes = curve ? link.cost.points.back().bytes : preset.most_bytes;
        // A preset of nodes with a curve of their own was measured on one node too, with all of it.
        const bool node = curve && ranks == preset.per_node;
        const bool between = ranks > preset.least_ranks && ranks < preset.most_ranks;
        const bool measured = ranks == preset.least_ranks || ranks == preset.most_ranks ||
                              (between && !preset.only_ends);
        if (!node && !measured) {
            const std::string from = std::to_string(preset.least_ranks);
            const std::string to = std::to_string(preset.most_ranks);
            const char* const joined = preset.only_ends ? " and " : " to ";
            link.beyond = "measured with " + (from == to ? from : from + joined + to) +
                          " ranks, used for " + std::to_string(ranks);
        }
        return link;
    }
    throw std::invalid_argument("no link is called \"" + label + "\"");
}

}  // namespace deft::planner
