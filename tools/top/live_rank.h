// SPDX-License-Identifier: Apache-2.0
// A rank as `deft top` sees it, and how long to wait for ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "tools/observe_file.h"

namespace deft::tools {

struct LiveRank {
    ObserveFile record;                 // the latest
    std::vector<ObservedLink> earlier;  // the links of its process `seconds` before that
    double seconds = 0;                 // 0: nothing earlier is known, so no rate is
};

// How many processes have sent how much.
struct Answers {
    std::size_t silent = 0, first = 0;  // nothing yet; one snapshot, so no rates yet
    std::size_t complete = 0;           // two or more
};

// Whether one screen may be printed, `waited` after the first look. Pure.
bool enough(const Answers& answers, std::chrono::duration<double> waited);

}  // namespace deft::tools
