// SPDX-License-Identifier: Apache-2.0
// Policy `us-byte`: Gao et al., US-Byte (TPDS 2024, DOI 10.1109/TPDS.2023.3331372): blocks of
// unequal size in two phases, communication under backward and communication under forward.
// Deviations: the paper's formulas are not public; this is a reconstruction from its abstract.
// Phase 1 sends, whenever the link is free, the most urgent bytes at hand in one block that ends
// when the next gradient arrives or backward ends, so that few start-ups are paid and the link is
// neither idle nor blocked. Phase 2 sends the rest input side first in blocks that end no later
// than forward needs them. Forward of a layer waits for its own gradient only.
#include <algorithm>
#include <cmath>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"

namespace deft::planner {
namespace {

class Blocks {
public:
    Blocks(const Profile& profile, const Fabric& fabric, const Options& options)
        : profile_(profile),
          fabric_(fabric),
          link_(fabric.links[0]),
          options_(options),
          sent_(profile.size(), 0),
          builder_("us-byte", Barrier::Layer) {}

    Plan run() {
        under_backward();
        under_forward();
        return builder_.finish(profile_, fabric_, options_);
    }

private:
    std::uint64_t left(std::size_t i) const { return profile_.buckets[i].bytes - sent_[i]; }

    // Sends up to `most` bytes, the most urgent of the first `arrived` buckets, as one block.
    void send(std::size_t arrived, std::uint64_t most) {
        bool first = true;
        for (std::size_t i = arrived; i-- > 0 && most > 0;) {
            std::uint64_t size = std::min(most, left(i));
            if (size < left(i)) {
                size = size / options_.grain * options_.grain;
            }
            if (size == 0) {
                continue;
            }
            if (!first) {
                builder_.fuse();
            }
            first = false;
            builder_.add(static_cast<std::uint32_t>(i), sent_[i], sent_[i] + size, 0);
            sent_[i] += size;
            most -= size;
        }
    }

    void under_backward() {
        const std::size_t n = profile_.size();
        std::size_t arrived = 0;
        while (now_ < profile_.backward) {
            while (arrived < n && profile_.buckets[arrived].ready <= now_) {
                ++arrived;
            }
            std::uint64_t at_hand = 0;
            for (std::size_t i = 0; i < arrived; ++i) {
                at_hand += left(i);
            }
            const double next = arrived < n ? profile_.buckets[arrived].ready : profile_.backward;
            if (at_hand == 0) {
                now_ = next;
                continue;
            }
            const double fits = link_.bytes_within(next - now_);
            auto size = static_cast<std::uint64_t>(std::min(static_cast<double>(at_hand), fits));
            // A block that costs more start-up than transfer is not worth sending on its own: it
            // takes at least this much along, and the next gradient waits a little.
            const auto worth = static_cast<std::uint64_t>(
                std::max(static_cast<double>(options_.least_piece),
                         4 * link_.latency() * std::min(link_.best_rate(), 1e15)));
            if (at_hand < worth && arrived < n) {
                now_ = next;  // wait and fuse
                continue;
            }
            if (size < worth && arrived == n) {
                break;  // backward is about to end: phase 2 sends it
            }
            size = std::max(size, std::min(at_hand, worth));
            send(arrived, size);
            now_ += link_.seconds(static_cast<double>(size));
        }
    }

    void under_forward() {
        double compute = profile_.backward;  // forward has work until then
        now_ = std::max(now_, profile_.backward);
        for (std::size_t i = profile_.size(); i-- > 0;) {
            if (left(i) == 0) {
                compute = std::max(compute, now_) + profile_.buckets[i].forward;
                continue;
            }
            // Take further buckets along while the block still ends before compute runs dry.
            std::uint64_t size = left(i);
            std::size_t last = i;
            while (last > 0) {
                const std::uint64_t more = size + left(last - 1);
                if (now_ + link_.seconds(static_cast<double>(more)) > compute) {
                    break;
                }
                size = more;
                --last;
            }
            send(i + 1, size);
            now_ += link_.seconds(static_cast<double>(size));
            compute = std::max(compute, now_);
            for (; i > last; --i) {
                compute += profile_.buckets[i].forward;
            }
            compute += profile_.buckets[i].forward;
        }
    }

    const Profile& profile_;
    const Fabric& fabric_;
    const Link& link_;
    const Options& options_;
    std::vector<std::uint64_t> sent_;
    PlanBuilder builder_;
    double now_ = 0;
};

}  // namespace

Plan plan_us_byte(const Profile& profile, const Fabric& fabric, const Options& options) {
    return Blocks(profile, fabric, options).run();
}

}  // namespace deft::planner
