// SPDX-License-Identifier: Apache-2.0
// Fabrics from preset names and files.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planner/model/fabric.h"

namespace deft::tools {

// Preset names separated by "," or "+" ("nvlink-a100,10GbE", "10GbE+100Gb"), or a file: TOML
// (*.toml) or JSON (*.json).
//
//     striped = false                      # the plugin stripes every message over all links
//     [[links]]
//     name = "eth0"                        # and either
//     preset = "10GbE"                     # a preset, or
//     gbit_per_s = 9.4                     # measured rate of each rank in a ring, or
//     points = [[65536, 0.00012], ...]     # measured all-reduce: bytes, seconds
//     alpha_s = 1e-5, beta_s_per_byte = 1e-10   # or a fitted line
//     latency_us = 20                      # of one step of the ring (with gbit_per_s)
//     algorithm = "ring"                   # or "tree", "hierarchical" (with gbit_per_s)
//     ranks_per_node, node_gbit_per_s, node_latency_us   # hierarchical: inside the node;
//                                          # gbit_per_s is then the uplink all its ranks share
//     per_message_us, compute_slowdown, overlap_penalty, in_flight, group, source
//     kind = "tcp"                         # for people
//     [[groups]]
//     name = "uplink", gbit_per_s = 40     # shared by the links that name it
//
// Throws InputError naming file and field.
planner::Fabric read_links(const std::string& what, std::uint32_t ranks);

planner::Fabric links_from_json(const std::string& name, const nlohmann::json& json,
                                std::uint32_t ranks);
planner::Fabric links_from_toml(const std::string& name, const std::string& text,
                                std::uint32_t ranks);

// The line on which the value of a field stands, by path ("links[1].gbit_per_s").
using TomlLines = std::map<std::string, std::size_t>;
// Throws InputError also where this command was built without a TOML reader.
nlohmann::json parse_toml(const std::string& name, const std::string& text,
                          TomlLines* lines = nullptr);

}  // namespace deft::tools
