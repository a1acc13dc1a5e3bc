// SPDX-License-Identifier: Apache-2.0
// Policy `us-byte`: Gao et al., US-Byte (TPDS 2024, DOI 10.1109/TPDS.2023.3331372): blocks of
// unequal size in two phases, communication under backward and communication under forward.
// Deviations: the paper's formulas are not public; this is a reconstruction from its abstract.
// Phase 1 sends, whenever the link is free, the most urgent bytes at hand in one block that ends
// when the next gradient arrives or backward ends, so that few start-ups are paid. A block worth
// less than its start-ups blocks the link beyond that moment, or leaves it idle until then where
// that is shorter than what fusing saves. Phase 2 sends the rest input side first in blocks of
// neighbours; which neighbours share a block is found by dynamic programming, exact for a link that
// serves one message at a time. Forward of a layer waits for its own gradient only. Phase 1 looks
// no further than the next gradient: where first ready, first sent is faster than its blocks, that
// is taken.
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

    // Seconds of the link that two blocks take longer than both in one.
    double saved(std::uint64_t a, std::uint64_t b) const {
        return link_.seconds(static_cast<double>(a)) + link_.seconds(static_cast<double>(b)) -
               link_.seconds(static_cast<double>(a + b));
    }

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
            if (!first && options_.allow_fusion) {
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
            // takes at least this much along, and the next gradient waits a little. Nor does the
            // link wait for the next gradient longer than fusing saves.
            const auto worth = static_cast<std::uint64_t>(
                std::max(static_cast<double>(options_.least_piece),
                         4 * link_.latency() * std::min(link_.best_rate(), 1e15)));
            if (at_hand < worth && arrived < n && next - now_ <= saved(at_hand, left(arrived))) {
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

    // Input side first, in blocks of neighbours. `rest[k]` is the least time from the moment the
    // link takes up the k-th of them until the iteration ends: the block that begins with it holds
    // up the forward of its first bucket, and the blocks after it theirs. Nothing else depends on
    // when the link gets there, so the recursion from the last block on is exact.
    void under_forward() {
        std::vector<std::size_t> order;  // what is left, input side first
        for (std::size_t i = profile_.size(); i-- > 0;) {
            if (left(i) > 0) {
                order.push_back(i);
            }
        }
        const std::size_t n = order.size();
        const std::vector<double> tails = profile_.tails();
        std::vector<double> rest(n + 1, 0.0);
        std::vector<std::size_t> until(n, n);  // the first bucket behind the block that begins here
        for (std::size_t k = n; k-- > 0;) {
            double bytes = 0;
            rest[k] = INFINITY;
            for (std::size_t end = k + 1; end <= n; ++end) {
                bytes += static_cast<double>(left(order[end - 1]));
                const double takes = link_.seconds(bytes);
                if (takes >= rest[k]) {
                    break;  // longer blocks take longer still
                }
                const double until_end = takes + std::max(tails[order[k]], rest[end]);
                if (until_end < rest[k]) {
                    rest[k] = until_end;
                    until[k] = end;
                }
            }
        }
        for (std::size_t k = 0; k < n; k = until[k]) {
            block(order, k, until[k]);
        }
    }

    void block(const std::vector<std::size_t>& order, std::size_t from, std::size_t to) {
        for (std::size_t k = from; k < to; ++k) {
            const std::size_t i = order[k];
            if (k > from && options_.allow_fusion) {
                builder_.fuse();
            }
            builder_.add(static_cast<std::uint32_t>(i), sent_[i], profile_.buckets[i].bytes, 0);
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
    Options layer = options;
    layer.barrier = Barrier::Layer;
    Plan blocks = Blocks(profile, fabric, layer).run();
    if (!options.predict) {  // whoever searches simulates both
        return blocks;
    }
    Plan plain = plan_wfbp(profile, fabric, layer);
    if (plain.predicted.iteration >= blocks.predicted.iteration) {
        return blocks;
    }
    plain.policy = "us-byte";
    return plain;
}

}  // namespace deft::planner
