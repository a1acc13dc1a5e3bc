// SPDX-License-Identifier: Apache-2.0
// Common links with rates somebody measured, not nominal ones, each with its source.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/model/fabric.h"

namespace deft::planner {

struct LinkPreset {
    const char* name;
    std::uint32_t least_ranks, most_ranks;  // measured with so many
    std::uint32_t per_node;                 // ranks of a node
    double least_bytes, most_bytes;         // and messages of such sizes; 0, 0: nobody says
    const char* summary;                    // what was measured, and where
    bool only_ends = false;                 // with no number of ranks between those two
};

const std::vector<LinkPreset>& link_presets();

// An all-reduce over `ranks` ranks on this link: for every message the fastest of a ring, a tree
// and, where switches of NVLink add, a hierarchy (nccl_link()), but for links of which only a curve
// or a table is known. Presets of nodes with NVLink take the node's own curve where all ranks fit
// into one. Link::beyond says where `ranks` lies outside of what was measured, Link::least_bytes
// and most_bytes which messages were. Throws std::invalid_argument for an unknown name.
Link preset_link(std::string_view name, std::uint32_t ranks);

}  // namespace deft::planner
