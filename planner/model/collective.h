// SPDX-License-Identifier: Apache-2.0
// All-reduce algorithms as links: what n ranks pay for a message.
#pragma once

#include <cstdint>
#include <string>

#include "planner/model/fabric.h"

namespace deft::planner {

// hop: seconds per step of the algorithm; rate: bytes per second each rank sends while it receives.

// 2(n-1) steps of 1/n of the message: 2(n-1) hop + 2(n-1)/n bytes/rate.
Link ring_link(std::string name, std::uint32_t ranks, double hop, double rate);

// Pipelined double binary tree: 2 ceil(log2 n) steps to fill it, every byte up and down once.
Link tree_link(std::string name, std::uint32_t ranks, double hop, double rate);

// What NCCL does with n ranks on nodes of `per_node`: for every message the faster of
//  - a ring through all ranks: 2(n-1) steps, of which 2 per node cross to the next one; and
//  - from two nodes on, a tree over the nodes, with chains inside each: 2 (per_node - 1) steps
//    inside, 2 ceil(log2 nodes) between, at a little less than a ring's rate (0.92: NCCL's own
//    model, src/graph/tuning.cc, whose first releases took 0.9); and
//  - where the nodes' switches add (NVLink SHARP), a hierarchy: sums inside every node in one step,
//    trees between nodes, at a ring's rate (NCCL's NVLSTree).
// inner, outer: seconds per step inside a node and between nodes; rate: as above; summed: seconds
// that switches take for a sum and its way back, 0: they do not add.
Link nccl_link(std::string name, std::uint32_t ranks, std::uint32_t per_node, double inner,
               double outer, double rate, double summed = 0);

// Reduce-scatter inside each node, all-reduce between nodes (one ring per local rank, sharing the
// node's uplink), all-gather inside. Three hops: the node's own links are one resource crossed
// twice, the uplink the other, so consecutive messages overlap.
Link hierarchical_link(std::string name, std::uint32_t nodes, std::uint32_t ranks_per_node,
                       double inner_hop, double inner_rate, double outer_hop, double outer_rate);

}  // namespace deft::planner
