// SPDX-License-Identifier: Apache-2.0
// The screen of `deft top`.
#pragma once

#include <string>
#include <vector>

#include "tools/observe_file.h"

namespace deft::tools {

struct TopScreen {
    std::string host, time;           // "14:03:21"
    std::vector<ObserveFile> now;     // by job and rank
    std::vector<ObserveFile> before;  // `seconds` earlier; empty: nothing is known of rates
    double seconds = 0;
    std::size_t columns = 80, lines = 24;
};

// Lines of at most `columns` characters, no more than `lines` of them: what does not fit is
// counted. Pure.
std::string top_text(const TopScreen& screen);

}  // namespace deft::tools
