// SPDX-License-Identifier: Apache-2.0
// Who waited and why: how long paths over each link were silent or lost until they were back, of
// all ranks of a host, and which rank held up the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/report.h"

namespace deft::tools {

struct LinkStalls {
    std::string host, name;
    std::vector<double> bounds_s;      // upper bounds
    std::vector<std::int64_t> counts;  // one more: longer than the last bound
    double total_ms = 0;

    // "below 100 ms", "of 0.1 to 0.3 s", "above 100 s"
    std::string bucket_words(std::size_t bucket) const;
};

// Of the links that had any. Ranks whose records have other bounds are left out.
std::vector<LinkStalls> stalls_of(const RunReport& run);

// For people: lines of the report, and a table of its page. Empty where there is nothing to say.
std::string stall_lines(const RunReport& run);
std::string stalls_table(const RunReport& run);
// Whom the others waited for, and who waited longest.
std::string waiting_lines(const RunReport& run);

}  // namespace deft::tools
