// SPDX-License-Identifier: Apache-2.0
// Which devices NCCL is shown: links put together by the GPUs they are near.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "topology/pci.h"

namespace deft {

// What matters of a link here.
struct LinkPlace {
    PciPlace pci;
    std::int64_t speed_mbps = 0;  // 0: not known
};

// One device: the links its connections use, and the one whose place NCCL is told.
struct AffinityGroup {
    std::vector<std::size_t> links;  // positions in the list given, in its order
    std::size_t nearest = 0;         // the fast link nearest to its GPUs
    bool shared = false;             // all groups have the same links: one budget for NCCL
};

// NCCL's search gives all channels equal shares, so devices must be equal: either every group has
// links of its own of the same total speed, at least two (so that one may die), or each group has
// all links and differs only in its place. One group if the GPUs do not differ in what is near
// them, or there are none. Never empty unless `links` is. Pure.
std::vector<AffinityGroup> group_by_affinity(const std::vector<LinkPlace>& links,
                                             const std::vector<PciPlace>& gpus);

}  // namespace deft
