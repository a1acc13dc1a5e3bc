// SPDX-License-Identifier: Apache-2.0
#include "planner/model/collective.h"

#include <algorithm>
#include <cmath>

namespace deft::planner {

Link ring_link(std::string name, std::uint32_t ranks, double hop, double rate) {
    const double n = ranks > 1 ? ranks : 1;
    Link link;
    link.name = std::move(name);
    link.cost.alpha = 2 * (n - 1) * hop;
    link.cost.beta = 2 * (n - 1) / n / rate;
    return link;
}

Link tree_link(std::string name, std::uint32_t ranks, double hop, double rate) {
    Link link;
    link.name = std::move(name);
    if (ranks > 1) {
        link.cost.alpha = 2 * std::ceil(std::log2(static_cast<double>(ranks))) * hop;
        link.cost.beta = 2 / rate;
    }
    return link;
}

Link nccl_link(std::string name, std::uint32_t ranks, std::uint32_t per_node, double inner,
               double outer, double rate, double summed) {
    constexpr double kTreeRate = 0.92;
    const double n = std::max(2U, ranks);
    const double local = std::min(std::max(1U, per_node), std::max(2U, ranks));
    const double nodes = std::ceil(n / local);
    const double steps = 2 * (n - 1);
    const double crossing = nodes > 1 ? std::min(steps, 2 * nodes) : 0;
    Link link;
    link.name = std::move(name);
    link.cost.algorithms.push_back(
        {crossing * outer + (steps - crossing) * inner, 2 * (n - 1) / n / rate});
    if (nodes > 1) {
        link.cost.algorithms.push_back(
            {2 * ((local - 1) * inner + std::ceil(std::log2(nodes)) * outer),
             2 / (kTreeRate * rate)});
        if (summed > 0) {
            link.cost.algorithms.push_back(
                {summed + 2 * std::ceil(std::log2(nodes)) * outer, 2 / rate});
        }
    }
    return link;
}

Link hierarchical_link(std::string name, std::uint32_t nodes, std::uint32_t ranks_per_node,
                       double inner_hop, double inner_rate, double outer_hop, double outer_rate) {
    const double g = ranks_per_node > 1 ? ranks_per_node : 1;
    const double m = nodes > 1 ? nodes : 1;
    CostCurve inner;
    inner.alpha = (g - 1) * inner_hop;
    inner.beta = (g - 1) / g / inner_rate;
    CostCurve outer;
    outer.alpha = 2 * (m - 1) * outer_hop;
    outer.beta = 2 * (m - 1) / m / outer_rate;
    Link link;
    link.name = std::move(name);
    link.hops = {
        {link.name + ":node", inner}, {link.name + ":uplink", outer}, {link.name + ":node", inner}};
    return link;
}

}  // namespace deft::planner
