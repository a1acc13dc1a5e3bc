// SPDX-License-Identifier: Apache-2.0
// The candidates for one kind of call, and their times over the parts of a trial. As in racing
// (Maron and Moore, 1994): who is clearly slower drops out, and the race ends as soon as nothing is
// in doubt. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shim/tuning/table.h"

namespace deft::tuning {

class Race {
public:
    struct Verdict {
        CollectiveChoice choice;
        double first_ms = 0;   // of the first candidate; 0: too few times to tell
        double chosen_ms = 0;  // of that one
    };

    explicit Race(const std::vector<CollectiveChoice>& candidates);

    // The times of a part, as Table hands out its samples, in nanoseconds; 0: not known. The first
    // part is a look: of its first round, in which connections are made, no time counts, and who is
    // far slower than the first candidate drops out.
    void look(const std::vector<std::uint64_t>& times);
    void take(const std::vector<std::uint64_t>& times);
    bool begun() const { return parts_ > 0; }
    // Another part would tell more.
    bool open() const;

    // Those that are left, the first one in front.
    std::vector<CollectiveChoice> choices() const;
    // Another way wins where it is clearly faster than the first candidate. Of the first one's own
    // way the fewest channels win that are about as fast as the fastest.
    Verdict verdict() const;

private:
    using Times = std::vector<std::uint64_t>;
    struct Runner {
        CollectiveChoice choice;
        Times times;
        double median_ms = 0;  // 0: too few times
    };

    // With the first candidate's algorithm and protocol.
    bool same_way(const Runner& runner) const;
    bool faster(const Runner& runner) const;
    void sort_in(const Times& times, std::size_t from);

    std::vector<Runner> runners_;  // never empty
    unsigned parts_ = 0;           // the look is one
};

}  // namespace deft::tuning
