// SPDX-License-Identifier: Apache-2.0
// Which calls a communicator repeats, and what NCCL has for them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shim/tuning/table.h"

namespace deft::tuning {

// One call as it went to NCCL.
struct SeenCall {
    std::uint32_t serial = 0;   // of the communicator in this process
    std::uint64_t ordinal = 0;  // of the communicator's calls that may be tuned
    Key key;
    CollectiveOffer offer;    // nothing available: NCCL did not ask, or for a group
    std::uint64_t order = 0;  // as in Pick
    std::int32_t entry = -1;
    std::int32_t sample = -1;
    std::int64_t issued_ns = 0;
    std::int64_t elapsed_ns = -1;  // on the device; below 0: not timed
};

class JobCalls {
public:
    struct Repeated {
        Key key;
        CollectiveOffer offer;
        std::uint64_t calls = 0;
        std::uint64_t last_ordinal = 0;
        bool steady = true;  // it was never in a group, and NCCL has always had the same
    };
    static constexpr std::size_t kKept = 256;

    void note(const SeenCall& call);
    // Null: it has not been seen, or not of late.
    const Repeated* find(const Key& key) const;
    // Calls that came so often at least and can be tuned, those that take longest first. The latest
    // one of each must be among the last `within` calls: a trial of calls that the job does not
    // make any more would never end.
    std::vector<Repeated> most(std::uint64_t often, std::uint64_t within, std::size_t number,
                               int nranks) const;

private:
    std::vector<Repeated> kept_;
    std::uint64_t seen_ = 0;  // ordinal behind the latest call's
};

}  // namespace deft::tuning
