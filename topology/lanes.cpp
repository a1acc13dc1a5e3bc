// SPDX-License-Identifier: Apache-2.0
#include "topology/lanes.h"

#include <sched.h>

#include <algorithm>
#include <atomic>

namespace deft {
namespace {

// Constant-initialised and trivially destroyed: safe before main and after exit. Held for the copy
// of one lane.
struct Registry {
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    std::array<Lane, kLanes> lanes;
    std::array<bool, kLanes> present{};
};
constinit Registry registry;

class Hold {
public:
    Hold() {
        while (registry.busy.test_and_set(std::memory_order_acquire)) {
            sched_yield();
        }
    }
    ~Hold() { registry.busy.clear(std::memory_order_release); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
};

bool ours(int traffic_class) {
    return traffic_class >= kFirstLaneClass && traffic_class < kFirstLaneClass + kLanes;
}

std::size_t slot(int traffic_class) {
    return static_cast<std::size_t>(traffic_class - kFirstLaneClass);
}

}  // namespace

std::uint16_t Lane::weight(std::string_view link) const {
    for (std::size_t i = 0; i < std::min(count, kMaxLinks); ++i) {
        if (link == links[i].name) {
            return links[i].weight;
        }
    }
    return others;
}

bool set_lane(int traffic_class, const Lane& lane) noexcept {
    if (!ours(traffic_class)) {
        return false;
    }
    const Hold hold;
    registry.lanes[slot(traffic_class)] = lane;
    registry.present[slot(traffic_class)] = true;
    return true;
}

void clear_lane(int traffic_class) noexcept {
    if (ours(traffic_class)) {
        const Hold hold;
        registry.present[slot(traffic_class)] = false;
    }
}

bool find_lane(int traffic_class, Lane& lane) noexcept {
    if (!ours(traffic_class)) {
        return false;
    }
    const Hold hold;
    if (!registry.present[slot(traffic_class)]) {
        return false;
    }
    lane = registry.lanes[slot(traffic_class)];
    return true;
}

}  // namespace deft
