// SPDX-License-Identifier: Apache-2.0
#include "shim/tuning/job_calls.h"

#include <algorithm>

namespace deft::tuning {

void JobCalls::note(const SeenCall& call) {
    seen_ = std::max(seen_, call.ordinal + 1);
    auto found = std::find_if(kept_.begin(), kept_.end(),
                              [&call](const Repeated& known) { return known.key == call.key; });
    if (found == kept_.end()) {
        if (kept_.size() == kKept) {  // sizes without end: the one that has not come for longest
            found = std::min_element(kept_.begin(), kept_.end(), [](const auto& a, const auto& b) {
                return a.last_ordinal < b.last_ordinal;
            });
            *found = {};
        } else {
            kept_.emplace_back();
            found = kept_.end() - 1;
        }
        found->key = call.key;
        found->offer = call.offer;
    }
    ++found->calls;
    found->last_ordinal = call.ordinal;
    if (call.offer.available == 0 || call.offer.available != found->offer.available ||
        call.offer.own != found->offer.own) {
        found->steady = false;
    }
}

const JobCalls::Repeated* JobCalls::find(const Key& key) const {
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&key](const Repeated& known) { return known.key == key; });
    return found != kept_.end() ? &*found : nullptr;
}

std::vector<JobCalls::Repeated> JobCalls::most(std::uint64_t often, std::uint64_t within,
                                               std::size_t number, int nranks) const {
    std::vector<Repeated> most;
    for (const Repeated& known : kept_) {
        if (known.steady && known.calls >= often && known.last_ordinal + within >= seen_) {
            most.push_back(known);
        }
    }
    // A call without bytes takes as long as some tens of KiB do.
    constexpr std::uint64_t kLatencyBytes = 64 << 10;
    const auto load = [nranks](const Repeated& call) {
        return call.calls * (bytes_of(call.key, nranks) + kLatencyBytes);
    };
    std::stable_sort(most.begin(), most.end(),
                     [&load](const Repeated& a, const Repeated& b) { return load(a) > load(b); });
    most.resize(std::min(most.size(), number));
    return most;
}

}  // namespace deft::tuning
