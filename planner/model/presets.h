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
    const char* summary;                    // what was measured, and where
};

const std::vector<LinkPreset>& link_presets();

// An all-reduce over `ranks` ranks on this link: for every message the faster of a ring and a tree
// (nccl_link()), but for links of which only a curve or a table is known. Link::beyond says where
// `ranks` lies outside of what was measured. Throws std::invalid_argument for an unknown name.
Link preset_link(std::string_view name, std::uint32_t ranks);

}  // namespace deft::planner
