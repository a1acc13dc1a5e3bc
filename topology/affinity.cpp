// SPDX-License-Identifier: Apache-2.0
#include "topology/affinity.h"

#include <algorithm>

namespace deft {
namespace {

// Slower than this part of the fastest link: never the one whose place NCCL is told.
constexpr std::int64_t kFastPart = 2;

bool fast(const LinkPlace& link, std::int64_t fastest) {
    return link.speed_mbps == 0 || link.speed_mbps * kFastPart >= fastest;
}

// The fast links at the least distance from this GPU.
std::vector<std::size_t> near(const PciPlace& gpu, const std::vector<LinkPlace>& links,
                              std::int64_t fastest) {
    Distance least = Distance::Unknown;
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < links.size(); ++i) {
        const Distance here = distance(gpu, links[i].pci);
        if (!fast(links[i], fastest) || here > least || here == Distance::Unknown) {
            continue;
        }
        if (here < least) {
            found.clear();
            least = here;
        }
        found.push_back(i);
    }
    return found;
}

std::int64_t total_speed(const std::vector<LinkPlace>& links, const std::vector<std::size_t>& set) {
    std::int64_t sum = 0;
    for (const std::size_t i : set) {
        sum += links[i].speed_mbps;
    }
    return sum;
}

// Disjoint, equal sets of at least two links that together are all links.
bool can_stand_alone(const std::vector<LinkPlace>& links,
                     const std::vector<std::vector<std::size_t>>& sets) {
    std::size_t count = 0;
    std::vector<bool> used(links.size());
    for (const std::vector<std::size_t>& set : sets) {
        if (set.size() < 2 || set.size() != sets[0].size() ||
            total_speed(links, set) != total_speed(links, sets[0])) {
            return false;
        }
        for (const std::size_t i : set) {
            if (used[i]) {
                return false;
            }
            used[i] = true;
        }
        count += set.size();
    }
    return count == links.size();
}

std::size_t fastest_of(const std::vector<LinkPlace>& links, const std::vector<std::size_t>& set) {
    return *std::max_element(set.begin(), set.end(), [&](std::size_t a, std::size_t b) {
        return links[a].speed_mbps < links[b].speed_mbps;
    });
}

// Where no GPU says what is near: the links that have a place.
std::vector<std::size_t> placed_or_first(const std::vector<LinkPlace>& links) {
    std::vector<std::size_t> placed;
    for (std::size_t i = 0; i < links.size(); ++i) {
        if (links[i].pci.known()) {
            placed.push_back(i);
        }
    }
    return placed.empty() ? std::vector<std::size_t>{0} : placed;
}

}  // namespace

std::vector<AffinityGroup> group_by_affinity(const std::vector<LinkPlace>& links,
                                             const std::vector<PciPlace>& gpus) {
    std::vector<AffinityGroup> groups;
    if (links.empty()) {
        return groups;
    }
    std::int64_t fastest = 0;
    for (const LinkPlace& link : links) {
        fastest = std::max(fastest, link.speed_mbps);
    }
    std::vector<std::vector<std::size_t>> sets;
    for (const PciPlace& gpu : gpus) {
        std::vector<std::size_t> set = near(gpu, links, fastest);
        if (!set.empty() && std::find(sets.begin(), sets.end(), set) == sets.end()) {
            sets.push_back(std::move(set));
        }
    }
    if (sets.size() > 1 && can_stand_alone(links, sets)) {
        for (std::vector<std::size_t>& set : sets) {
            groups.push_back({set, fastest_of(links, set), false});
        }
        return groups;
    }
    if (sets.empty()) {
        sets.push_back(placed_or_first(links));
    }
    for (const std::vector<std::size_t>& set : sets) {
        const std::size_t nearest = fastest_of(links, set);
        if (std::any_of(groups.begin(), groups.end(),
                        [&](const AffinityGroup& other) { return other.nearest == nearest; })) {
            continue;
        }
        AffinityGroup group;
        group.nearest = nearest;
        for (std::size_t i = 0; i < links.size(); ++i) {
            group.links.push_back(i);
        }
        groups.push_back(std::move(group));
    }
    for (AffinityGroup& group : groups) {
        group.shared = groups.size() > 1;
    }
    return groups;
}

}  // namespace deft
