// SPDX-License-Identifier: Apache-2.0
// Every order of messages with their start-ups on one link, where layers wait for their own: the
// space in which ByteScheduler cuts and US-Byte cuts and fuses.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/profile.h"

namespace deft::planner::testing {

// The least iteration over every sequence of messages. A message takes any number of equal parts of
// any buckets, starts when the link is free and all of it is ready, and is not interrupted. Buckets
// have `parts` of them. One pass over how much of each bucket is sent, with what no other way to
// get there beats: the time, and how long the iteration takes for what is complete.
class EveryOrder {
public:
    EveryOrder(const Profile& profile, const Link& link, std::uint32_t parts)
        : profile_(profile), link_(link), parts_(parts), tails_(profile.tails()) {
        states_ = 1;
        for (std::size_t i = 0; i < profile.size(); ++i) {
            states_ *= parts + 1;
        }
    }

    double seconds() const {
        std::vector<std::vector<Way>> best(states_);
        best[0].push_back({0, profile_.compute()});
        for (std::size_t state = 0; state < states_; ++state) {  // sending only adds to its number
            for (std::size_t next = state + 1; next < states_; ++next) {
                double bytes = 0;
                double ready = 0;
                double tail = -INFINITY;
                if (!message(state, next, bytes, ready, tail)) {
                    continue;
                }
                const double takes = link_.seconds(bytes);
                for (const Way& way : best[state]) {
                    const double end = std::max(way.now, ready) + takes;
                    keep(best[next], {end, std::max(way.iteration, end + tail)});
                }
            }
            if (state + 1 < states_) {
                best[state] = {};
            }
        }
        double least = INFINITY;
        for (const Way& way : best.back()) {
            least = std::min(least, way.iteration);
        }
        return least;
    }

private:
    struct Way {
        double now;        // the link is free
        double iteration;  // at least, for the buckets that are complete
    };

    // What lies between two states; false if the second has less of some bucket.
    bool message(std::size_t from, std::size_t to, double& bytes, double& ready,
                 double& tail) const {
        for (std::size_t i = 0; i < profile_.size(); ++i) {
            const std::size_t before = from % (parts_ + 1);
            const std::size_t after = to % (parts_ + 1);
            from /= parts_ + 1;
            to /= parts_ + 1;
            if (after < before) {
                return false;
            }
            if (after > before) {
                bytes += static_cast<double>(profile_.buckets[i].bytes) *
                         static_cast<double>(after - before) / parts_;
                ready = std::max(ready, profile_.buckets[i].ready);
                tail = after == parts_ ? std::max(tail, tails_[i]) : tail;
            }
        }
        return true;
    }

    static void keep(std::vector<Way>& ways, const Way& way) {
        const auto beats = [](const Way& a, const Way& b) {
            return a.now <= b.now && a.iteration <= b.iteration;
        };
        if (std::any_of(ways.begin(), ways.end(), [&](const Way& w) { return beats(w, way); })) {
            return;
        }
        std::erase_if(ways, [&](const Way& w) { return beats(way, w); });
        ways.push_back(way);
    }

    const Profile& profile_;
    const Link& link_;
    const std::uint32_t parts_;
    const std::vector<double> tails_;
    std::size_t states_ = 0;
};

}  // namespace deft::planner::testing
