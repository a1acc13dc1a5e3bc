// SPDX-License-Identifier: Apache-2.0
// Random but repeatable profiles and fabrics for the planner's tests.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/profile.h"

namespace deft::planner::testing {

inline double uniform(std::mt19937_64& random, double low, double high) {
    return low + (high - low) * (static_cast<double>(random() >> 11) * 0x1.0p-53);
}

// `owned`: forward time belongs to buckets entirely, else the output side has a part of its own.
inline Profile random_profile(std::mt19937_64& random, std::uint32_t buckets, bool owned = false) {
    Profile profile;
    profile.name = "random";
    double ready = 0;
    for (std::uint32_t i = 0; i < buckets; ++i) {
        Bucket bucket;
        bucket.name = "b" + std::to_string(i);
        // Multiples of a page, so that whole-element cuts cost nothing.
        bucket.bytes = (1 + random() % 60000) * 4096;
        ready += uniform(random, 0, 1) < 0.1 ? 0 : uniform(random, 1e-4, 8e-3);
        bucket.ready = ready;
        bucket.forward = uniform(random, 1e-4, 4e-3);
        profile.forward += bucket.forward;
        profile.buckets.push_back(bucket);
    }
    profile.backward = ready + uniform(random, 0, 2e-3);
    profile.forward += owned ? 0 : uniform(random, 0, 3e-3);
    return profile;
}

inline Link line(std::string name, double bytes_per_second, double alpha = 0) {
    Link link;
    link.name = std::move(name);
    link.cost.alpha = alpha;
    link.cost.beta = 1 / bytes_per_second;
    return link;
}

inline Fabric one_link(double bytes_per_second, double alpha = 0) {
    Fabric fabric;
    fabric.links.push_back(line("nic0", bytes_per_second, alpha));
    return fabric;
}

inline Fabric random_fabric(std::mt19937_64& random, std::uint32_t links, bool overheads) {
    Fabric fabric;
    for (std::uint32_t j = 0; j < links; ++j) {
        Link link = line("nic" + std::to_string(j), uniform(random, 1e9, 2e10),
                         overheads ? uniform(random, 0, 5e-4) : 0);
        if (overheads && random() % 2 == 0) {
            double seconds = uniform(random, 1e-5, 2e-4);
            for (double bytes = 32768; bytes <= 1 << 28; bytes *= 4) {
                link.cost.points.push_back({bytes, seconds});
                seconds += bytes * 4 / uniform(random, 1e9, 2e10);
            }
        }
        if (overheads) {
            link.per_message = random() % 2 == 0 ? 0 : uniform(random, 0, 2e-4);
            link.in_flight = 1 + static_cast<std::uint32_t>(random() % 3);
            link.overlap_penalty = random() % 3 == 0 ? uniform(random, 0, 0.5) : 0;
            link.compute_slowdown = random() % 3 == 0 ? uniform(random, 0, 0.3) : 0;
        }
        fabric.links.push_back(link);
    }
    if (overheads && links > 1 && random() % 2 == 0) {
        fabric.groups.push_back({"uplink", uniform(random, 1e9, 2e10)});
        fabric.links[0].group = fabric.links[1].group = "uplink";
    }
    return fabric;
}

}  // namespace deft::planner::testing
