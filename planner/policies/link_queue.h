// SPDX-License-Identifier: Apache-2.0
// When a link that serves first come, first served is done, as its buckets change one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace deft::planner {

// A tree over all buckets, in the order in which they exist: a change costs log n, where going
// through the link's part costs n.
class LinkQueue {
public:
    explicit LinkQueue(std::size_t buckets) {
        while (leaves_ < buckets) {
            leaves_ *= 2;
        }
        nodes_.resize(2 * leaves_);
    }

    // Bucket i exists from `ready` on and takes `cost`, seconds.
    void add(std::size_t i, double ready, double cost) { put(i, {cost, ready + cost}); }
    void remove(std::size_t i) { put(i, {}); }
    void clear() { std::fill(nodes_.begin(), nodes_.end(), Part()); }

    // Seconds; minus infinity without a bucket.
    double done() const { return nodes_[1].done; }

private:
    struct Part {
        double cost = 0;          // of all buckets in it
        double done = -INFINITY;  // when the link is, if it served these alone
    };

    void put(std::size_t i, Part part) {
        i += leaves_;
        nodes_[i] = part;
        for (i /= 2; i > 0; i /= 2) {
            const Part& first = nodes_[2 * i];
            const Part& then = nodes_[2 * i + 1];
            nodes_[i] = {first.cost + then.cost, std::max(first.done + then.cost, then.done)};
        }
    }

    std::size_t leaves_ = 2;
    std::vector<Part> nodes_;  // the root is 1, the children of i are 2i and 2i + 1
};

}  // namespace deft::planner
