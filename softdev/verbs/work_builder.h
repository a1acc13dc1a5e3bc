// SPDX-License-Identifier: Apache-2.0
// The newer way to post: ibv_wr_start(), one call for each request, ibv_wr_complete().
#pragma once

#include <infiniband/verbs.h>

#include <deque>
#include <vector>

namespace softdev::verbs {

/// What stands between start and complete.
struct WorkBuilder {
    struct Item {
        ibv_send_wr wr{};
        std::vector<ibv_sge> sges;
        std::vector<char> inlined;
    };
    std::deque<Item> items;
    bool open = false;

    /// Puts the functions into the queue pair.
    static void install(ibv_qp_ex& qp);
};

}  // namespace softdev::verbs
