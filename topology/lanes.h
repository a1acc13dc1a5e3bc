// SPDX-License-Identifier: Apache-2.0
// Lanes: which links a communicator may use, and how much of each. The shim writes a lane before it
// makes a communicator with that traffic class; the plugin reads it when that communicator listens
// or connects. What the two halves of the library agree on, and nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deft {

// NCCL passes a communicator's traffic class to the network plugin (from 2.26 on, to both ends from
// 2.28 on). Numbers from here on are ours; InfiniBand's are below 256.
inline constexpr int kFirstLaneClass = 0x4c00;
inline constexpr int kLanes = 32;
// Of a lane that has no entry here: it uses all links.
inline constexpr int kWholeLaneClass = kFirstLaneClass + kLanes;

// True for a traffic class of a lane.
constexpr bool is_lane_class(int traffic_class) {
    return traffic_class >= kFirstLaneClass && traffic_class <= kWholeLaneClass;
}

struct LaneLink {
    char name[64] = "";  // of the interface, as in the observe file and `deft topo`
    // Per mille of its rate that this lane counts on; 0: not used. Chunks go where they are
    // expected to arrive first, so a link at 500 gets half of what it would.
    std::uint16_t weight = 1000;
};

struct Lane {
    static constexpr std::size_t kMaxLinks = 16;
    std::array<LaneLink, kMaxLinks> links;
    std::size_t count = 0;
    std::uint16_t others = 0;  // weight of links that are not listed

    std::uint16_t weight(std::string_view link) const;
};

// Sets, or replaces, the lane of this traffic class; connections made before keep theirs. False if
// the class is not one of ours. Any thread; never allocates.
bool set_lane(int traffic_class, const Lane& lane) noexcept;
void clear_lane(int traffic_class) noexcept;
// False if there is none: then all links are used.
bool find_lane(int traffic_class, Lane& lane) noexcept;

}  // namespace deft
