// SPDX-License-Identifier: Apache-2.0
#include "planner/model/profile.h"

#include <cmath>

namespace deft::planner {

std::uint64_t Profile::bytes() const {
    std::uint64_t sum = 0;
    for (const Bucket& bucket : buckets) {
        sum += bucket.bytes;
    }
    return sum;
}

std::vector<double> Profile::tails() const {
    std::vector<double> tail(buckets.size());
    double begun = 0;
    for (std::size_t i = buckets.size(); i-- > 0;) {
        tail[i] = forward - begun;
        begun += buckets[i].forward;
    }
    return tail;
}

Profile Profile::without_overlap() const {
    Profile other = *this;
    for (Bucket& bucket : other.buckets) {
        bucket.ready = backward;
    }
    return other;
}

std::string Profile::problem() const {
    const auto bad = [](double value) { return !std::isfinite(value) || value < 0; };
    if (buckets.empty()) {
        return "buckets: there is none";
    }
    if (bad(forward)) {
        return "forward: not a time";
    }
    if (bad(backward)) {
        return "backward: not a time";
    }
    // Sums of measured times round: leave room for that and no more.
    const double slack = 1e-9 * (1 + forward + backward);
    double owned = 0;
    double earlier = 0;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
        const Bucket& bucket = buckets[i];
        const std::string at = "buckets[" + std::to_string(i) + "]";
        if (bucket.bytes == 0 || bucket.bytes > (std::uint64_t{1} << 50)) {
            return at + ".bytes: outside 1..2^50";
        }
        total += bucket.bytes;
        if (total > (std::uint64_t{1} << 50)) {
            return at + ".bytes: more than 2^50 in all";
        }
        if (bad(bucket.ready) || bucket.ready > backward + slack) {
            return at + ".ready: outside the backward window";
        }
        if (bucket.ready < earlier) {
            return at + ".ready: before the bucket in front of it (buckets stand in send order)";
        }
        if (bad(bucket.forward)) {
            return at + ".forward: not a time";
        }
        earlier = bucket.ready;
        owned += bucket.forward;
    }
    if (owned > forward + slack) {
        return "buckets: their forward times exceed the forward window";
    }
    return {};
}

}  // namespace deft::planner
