// SPDX-License-Identifier: Apache-2.0
#include "topology/discovery/nvlink.h"

#include <algorithm>

#include "topology/discovery/machine.h"

namespace deft::discovery {

const char* to_string(NvLinkEnd end) {
    switch (end) {
        case NvLinkEnd::Gpu:
            return "gpu";
        case NvLinkEnd::Switch:
            return "switch";
        case NvLinkEnd::Cpu:
            return "cpu";
        case NvLinkEnd::Other:
            return "other";
    }
    return "other";
}

double nccl_nvlink_rate(int sm) {
    if (sm >= 100) {
        return 40.1;
    }
    if (sm >= 90) {
        return 20.6;
    }
    if (sm == 86) {
        return 12;
    }
    return sm >= 70 ? 20 : sm >= 60 ? 18 : 0;
}

NvLinkEnd nvlink_end(std::uint32_t pci_class) {
    if (pci_class >> 16 == 0x03) {
        return NvLinkEnd::Gpu;
    }
    if (pci_class >> 16 == 0x02) {
        return NvLinkEnd::Other;  // a NIC
    }
    return pci_class == 0x068001 ? NvLinkEnd::Cpu : NvLinkEnd::Switch;
}

int nvidia_capability(std::uint32_t device) {
    // Data-centre GPUs with NVLink; the first that holds the number counts.
    static constexpr struct {
        std::uint32_t first, last;
        int sm;
    } kinds[] = {
        {0x15f0, 0x15ff, 60}, {0x1db0, 0x1dff, 70},  {0x20b0, 0x20ff, 80},  {0x2320, 0x234f, 90},
        {0x2200, 0x25ff, 86}, {0x2900, 0x29ff, 100}, {0x3180, 0x31ff, 103},
    };
    for (const auto& kind : kinds) {
        if (device >= kind.first && device <= kind.last) {
            return kind.sm;
        }
    }
    return 0;
}

void recognise_gpus(Machine& machine) {
    for (Gpu& gpu : machine.gpus) {
        for (NvLinks& links : gpu.nvlinks) {
            for (const Gpu& other : machine.gpus) {
                if (other.pci.address == links.target) {
                    links.end = NvLinkEnd::Gpu;
                }
            }
        }
    }
}

void add_nvlinks(const NvLinkMatrix& matrix, Machine& machine) {
    constexpr std::uint64_t kFirstRelease = 20000;
    constexpr std::uint64_t kLater = 25000;
    const std::size_t n = matrix.objects.size();
    for (std::size_t i = 0; i < n; ++i) {
        const auto gpu =
            std::find_if(machine.gpus.begin(), machine.gpus.end(), [&](const Gpu& each) {
                return matrix.objects[i].end == NvLinkEnd::Gpu &&
                       each.pci.address == matrix.objects[i].address;
            });
        for (std::size_t j = 0; gpu != machine.gpus.end() && j < n; ++j) {
            const std::uint64_t mbytes = matrix.mbytes[i * n + j];
            if (i == j || mbytes == 0) {
                continue;
            }
            const std::uint64_t one = mbytes % kLater == 0 ? kLater : kFirstRelease;
            NvLinks links;
            links.end = matrix.objects[j].end;
            links.target = matrix.objects[j].address;
            links.count = static_cast<int>(std::max<std::uint64_t>(1, (mbytes + one / 2) / one));
            links.gbytes = static_cast<double>(mbytes) / 1000;
            gpu->nvlinks.push_back(links);
            gpu->nvlink_source = "hwloc";
        }
    }
}

}  // namespace deft::discovery
