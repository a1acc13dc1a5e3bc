// SPDX-License-Identifier: Apache-2.0
// The send queue: work requests from their posting to their completion, and the room they take.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "softdev/verbs/pieces.h"

namespace softdev::verbs {

struct Qp;

struct SendRequest {
    ibv_send_wr wr{};  ///< its list and its successor are not looked at
    std::array<ibv_sge, kMostSge> sges;
    std::size_t sge_count = 0;
    std::vector<char> inlined;
    std::uint64_t length = 0;
    std::uint64_t number = 0;  ///< of all posted to this queue
    bool signaled = false;
    ibv_wc_status trouble = IBV_WC_SUCCESS;  ///< found when it was to be sent

    /// Whether the answer brings data: a read or an atomic.
    bool fetches() const;
};

class SendQueue {
public:
    /// 0, or what ibv_post_send returns. Reports what is wrong. Under Qp::entry.
    int check(const Qp& qp, const ibv_send_wr& wr) const;
    /// Takes room for it. Under Qp::entry.
    SendRequest make(const Qp& qp, const ibv_send_wr& wr);
    /// All under Nic::mutex from here on. This one under Qp::entry, too.
    void clear();

    bool empty() const { return requests.empty(); }
    /// The request of that sequence; it must be there.
    SendRequest& at(std::uint64_t sequence) { return requests[sequence - first]; }

    std::deque<SendRequest> requests;  ///< not completed
    std::uint64_t first = 0;           ///< sequence of the oldest
    /// Room comes back when a completion is polled: then that of all requests up to it.
    std::atomic<std::uint64_t> freed{0};

private:
    std::uint64_t posted_ = 0;  ///< under Qp::entry
};

}  // namespace softdev::verbs
