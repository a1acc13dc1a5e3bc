// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/lease.h"

#include "shim/cuda/event_pool.h"

namespace deft::executor {

Ballot::Word Lease::word(std::uint64_t iteration, bool switches) noexcept {
    if (needed_) {
        const bool in_time = cuda::host_now() < until_ns_.load(std::memory_order_relaxed);
        vouched_.store(in_time && !withheld(), std::memory_order_relaxed);
    }
    if (!vouched()) {
        return Ballot::Word::No;
    }
    const bool begins = (iteration + kAfter) % period_ == 0;
    return switches && begins ? Ballot::Word::Switch : Ballot::Word::Yes;
}

}  // namespace deft::executor
