// SPDX-License-Identifier: Apache-2.0
// The screen of `deft top`.
#pragma once

#include <string>
#include <vector>

#include "tools/top/live_rank.h"

namespace deft::tools {

struct TopScreen {
    std::string host, time;           // "14:03:21"
    std::vector<LiveRank> ranks;      // by job and rank
    std::vector<std::string> silent;  // sockets of processes that do not answer
    std::size_t columns = 80, lines = 24;
};

// Lines of at most `columns` characters, no more than `lines` of them: what does not fit is
// counted. Pure.
std::string top_text(const TopScreen& screen);

}  // namespace deft::tools
