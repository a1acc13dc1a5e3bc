// SPDX-License-Identifier: Apache-2.0
// Second half of compiling a plan: shadow slots, and the steps of each call.
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "shim/executor/live_ranges.h"
#include "shim/nccl/call.h"

namespace deft::executor {
namespace {

constexpr std::uint64_t kAlignment = 512;      // NCCL and the kernels read whole vectors
constexpr std::uint32_t kMostSlots = 8;        // of one region
constexpr std::uint32_t kMostRepeats = 12;     // of the plan's period in the script's
constexpr std::uint64_t kMostCalls = 1 << 18;  // actions in a script

std::int64_t modulo(std::int64_t a, std::int64_t b) {
    return (a % b + b) % b;
}

class Compiler {
public:
    Compiler(const planner::Plan& plan, std::span<const Shape> shapes,
             const CompileOptions& options, LiveRanges live_ranges, std::string& problem)
        : options_(options), live_ranges_(std::move(live_ranges)), problem_(problem) {
        script_.shapes.assign(shapes.begin(), shapes.end());
        script_.lanes = options.lanes;
        script_.fingerprint = plan.fingerprint();
        script_.residual = options.residual;
        script_.layers = plan.barrier == planner::Barrier::Layer;
    }

    Script run() {
        if (choose_slots()) {
            number_slots();
            make_staging();
            for (std::int64_t t = 0; t < script_.period; ++t) {
                for (std::uint32_t b = 0; b < live_ranges_.buckets; ++b) {
                    emit(t, b);
                }
            }
            if (script_.layers) {
                mark_ends();
            }
        }
        return std::move(script_);
    }

private:
    std::int64_t sums(const LiveRange& range) const {
        return static_cast<std::int64_t>(range.sums.size());
    }

    // The sum number i of a region, counted on over the periods: first and last call that need its
    // slot.
    std::int64_t from(const LiveRange& range, std::int64_t i) const {
        const Sum& sum = range.sums[static_cast<std::size_t>(modulo(i, sums(range)))];
        return live_ranges_.call(sum.first(), range.region.bucket) + period_of(range, i);
    }
    std::int64_t until(const LiveRange& range, std::int64_t i) const {
        std::int64_t last = 0;
        const std::int64_t kept = range.region.predicted ? options_.history : 0;
        for (std::int64_t k = i; k <= i + kept; ++k) {
            const Sum& sum = range.sums[static_cast<std::size_t>(modulo(k, sums(range)))];
            last = std::max(
                last, live_ranges_.call(sum.update(), range.region.bucket) + period_of(range, k));
        }
        return last;
    }
    std::int64_t period_of(const LiveRange& range, std::int64_t i) const {
        return (i - modulo(i, sums(range))) / sums(range) * live_ranges_.calls();
    }

    // Slots taken in turn: the fewest so that no slot is written before it is free. In one call
    // gradients are taken in before sums are delivered, so "free" means: in an earlier call.
    std::uint32_t fewest_slots(const LiveRange& range) const {
        for (std::uint32_t n = 1; n <= kMostSlots; ++n) {
            bool enough = true;
            for (std::int64_t i = 0; i < sums(range); ++i) {
                enough = enough && from(range, i + n) > until(range, i);
            }
            if (enough) {
                return n;
            }
        }
        return kMostSlots + 1;
    }

    // Turns must come out even over the script's period, so that it can repeat the plan's a few
    // times; the least memory wins.
    bool choose_slots() {
        std::vector<std::uint32_t> fewest;
        for (const LiveRange& range : live_ranges_.ranges) {
            fewest.push_back(range.direct ? 0 : fewest_slots(range));
        }
        std::uint64_t best = std::numeric_limits<std::uint64_t>::max();
        for (std::uint32_t repeats = 1; repeats <= kMostRepeats; ++repeats) {
            if (std::uint64_t{repeats} * static_cast<std::uint64_t>(live_ranges_.calls()) >
                kMostCalls) {
                break;
            }
            std::uint64_t bytes = 0;
            std::vector<std::uint32_t> slots;
            for (std::size_t r = 0; r < fewest.size(); ++r) {
                const auto turns =
                    static_cast<std::uint32_t>(live_ranges_.ranges[r].sums.size()) * repeats;
                std::uint32_t n = fewest[r];
                while (n != 0 && turns % n != 0) {
                    n = n < kMostSlots ? n + 1 : kMostSlots + 1;
                    if (n > kMostSlots) {
                        break;
                    }
                }
                if (n > kMostSlots) {
                    bytes = std::numeric_limits<std::uint64_t>::max();
                    break;
                }
                slots.push_back(n);
                bytes += n * padded(live_ranges_.ranges[r].region);
            }
            if (bytes < best) {
                best = bytes;
                script_.plan_period = live_ranges_.period;
                script_.period = live_ranges_.period * repeats;
                slots_ = std::move(slots);
            }
        }
        if (slots_.size() != live_ranges_.ranges.size()) {
            problem_ =
                "the plan keeps more than " + std::to_string(kMostSlots) + " sums of one bucket";
            return false;
        }
        return true;
    }

    static std::uint64_t padded(const Region& region) {
        return (region.end - region.begin + kAlignment - 1) / kAlignment * kAlignment;
    }

    void number_slots() {
        for (std::uint32_t r = 0; r < live_ranges_.ranges.size(); ++r) {
            LiveRange& range = live_ranges_.ranges[r];
            range.region.slots = slots_[r];
            range.region.first_slot = static_cast<std::uint32_t>(script_.slots.size());
            for (std::uint32_t k = 0; k < slots_[r]; ++k) {
                script_.slots.push_back({r, script_.shadow_bytes});
                script_.shadow_bytes += padded(range.region);
            }
            script_.regions.push_back(range.region);
            std::vector<std::uint32_t> merged(live_ranges_.period);
            for (const Sum& sum : range.sums) {
                script_.max_delay = std::max(script_.max_delay, sum.delay);
                auto& count = merged[static_cast<std::size_t>(sum.update()) % live_ranges_.period];
                script_.max_merge = std::max(script_.max_merge, count += sum.count);
                script_.interval = std::max(script_.interval, sum.count);
            }
        }
    }

    // Of every rank's part of a bucket, so much at a time is carried by a lane.
    std::uint64_t stretch(const Shape& shape) const {
        const std::uint64_t element = element_size(shape.type);
        return std::max<std::uint64_t>(options_.most_staged / options_.ranks / element, 1) *
               element;
    }

    void make_staging() {
        if (script_.series() != Series::Shards) {
            return;
        }
        script_.staging.resize(options_.lanes);
        for (const Piece& piece : live_ranges_.pieces) {
            const std::uint32_t bucket = live_ranges_.ranges[piece.region].region.bucket;
            if (!forwarded(bucket)) {
                std::uint64_t& bytes = script_.staging[piece.lane].bytes;
                const std::uint64_t once =
                    std::min(piece.end - piece.begin, stretch(script_.shapes[bucket]));
                bytes = std::max(bytes, once * options_.ranks);
            }
        }
        for (Staging& staging : script_.staging) {
            staging.offset = script_.shadow_bytes;
            script_.shadow_bytes += (staging.bytes + kAlignment - 1) / kAlignment * kAlignment;
        }
    }

    std::uint32_t slot_of(std::uint32_t r, std::int64_t i) const {
        const Region& region = live_ranges_.ranges[r].region;
        return region.slots == 0
                   ? kDirect
                   : region.first_slot + static_cast<std::uint32_t>(modulo(i, region.slots));
    }

    // Sums of a region that are delivered in the update of iteration t: numbers over the periods.
    std::vector<std::int64_t> delivered(const LiveRange& range, std::int64_t t) const {
        std::vector<std::int64_t> found;
        for (std::int64_t s = 0; s < sums(range); ++s) {
            const std::int64_t late = t - range.sums[static_cast<std::size_t>(s)].update();
            if (modulo(late, live_ranges_.period) == 0) {
                found.push_back(s + (late - modulo(late, live_ranges_.period)) /
                                        live_ranges_.period * sums(range));
            }
        }
        std::sort(found.begin(), found.end());
        return found;
    }

    // The lanes write the sum into the caller's buffer: it is delivered by the call that completes
    // it, alone, and nobody needs it later.
    bool into_caller(const LiveRange& range, const Sum& sum) const {
        if (sum.delay != 0 || range.region.predicted) {
            return false;
        }
        return std::count_if(range.sums.begin(), range.sums.end(), [&](const Sum& other) {
                   return modulo(other.update() - sum.update(), live_ranges_.period) == 0;
               }) == 1;
    }

    void emit(std::int64_t t, std::uint32_t bucket) {
        Action action;
        action.accumulate = size(script_.accumulates);
        action.launch = size(script_.launches);
        action.deliver = size(script_.deliveries);
        action.zero = size(script_.zeros);
        action.forward = forwarded(bucket);
        for (std::uint32_t r = 0; r < live_ranges_.ranges.size(); ++r) {
            if (live_ranges_.ranges[r].region.bucket == bucket && !action.forward) {
                emit_accumulate(t, r);
                emit_deliver(t, r);
            }
        }
        emit_launches(t, bucket);
        action.accumulate_end = size(script_.accumulates);
        action.launch_end = size(script_.launches);
        action.deliver_end = size(script_.deliveries);
        action.zero_end = size(script_.zeros);
        script_.actions.push_back(action);
    }

    template <typename T>
    static std::uint32_t size(const std::vector<T>& table) {
        return static_cast<std::uint32_t>(table.size());
    }

    // From the last on: the first that is met of a bucket, and of a bucket on a lane.
    void mark_ends() {
        std::set<std::uint32_t> buckets;
        std::set<std::pair<std::uint32_t, std::uint32_t>> lanes;
        for (std::size_t i = script_.launches.size(); i-- > 0;) {
            Launch& launch = script_.launches[i];
            const std::uint32_t bucket = script_.regions[launch.region].bucket;
            launch.ends_bucket = buckets.insert(bucket).second;
            launch.ends_lane = lanes.emplace(bucket, launch.lane).second;
        }
    }

    // The job's own communicator waits for no lane, so nothing could overtake what it carries. Nor
    // is it measured: where anything is late or merged, the guard is to see all of the gradient.
    bool forwarded(std::uint32_t bucket) const {
        if (script_.layers || script_.max_delay > 0 || script_.max_merge > 1) {
            return false;
        }
        const Piece* only = nullptr;
        for (const Piece& piece : live_ranges_.pieces) {
            const LiveRange& range = live_ranges_.ranges[piece.region];
            if (range.region.bucket != bucket) {
                continue;
            }
            if (!range.direct || !range.region.whole || piece.begin != range.region.begin ||
                piece.end != range.region.end || piece.lane != options_.forward_lane) {
                return false;
            }
            only = &piece;
        }
        return only != nullptr;
    }

    void emit_accumulate(std::int64_t t, std::uint32_t r) {
        const LiveRange& range = live_ranges_.ranges[r];
        if (range.direct) {
            return;
        }
        for (std::int64_t s = 0; s < sums(range); ++s) {
            const Sum& sum = range.sums[static_cast<std::size_t>(s)];
            const std::int64_t ahead = modulo(sum.newest - t, live_ranges_.period);
            if (ahead < sum.count) {
                const std::int64_t number =
                    s + (t + ahead - sum.newest) / live_ranges_.period * sums(range);
                script_.accumulates.push_back({slot_of(r, number), ahead == 0});
                return;
            }
        }
    }

    void emit_deliver(std::int64_t t, std::uint32_t r) {
        const LiveRange& range = live_ranges_.ranges[r];
        bool add = false;
        for (const std::int64_t number : delivered(range, t)) {
            const auto s = static_cast<std::size_t>(modulo(number, sums(range)));
            Deliver step;
            step.region = r;
            step.slot = slot_of(r, number);
            step.delay = range.sums[s].delay;
            step.add = add;
            step.in_place = range.direct || into_caller(range, range.sums[s]);
            step.predict = range.region.predicted && step.delay > 0;
            step.previous = slot_of(r, number - 1);
            step.before_previous = slot_of(r, number - 2);
            for (const Piece& piece : live_ranges_.pieces) {
                if (piece.region == r && piece.sum == s) {
                    step.lanes |= std::uint64_t{1} << piece.lane;
                }
            }
            script_.deliveries.push_back(step);
            add = true;
        }
        if (!add) {
            auto& zeros = script_.zeros;
            const std::uint32_t own = script_.actions.empty() ? 0 : script_.actions.back().zero_end;
            if (size(zeros) > own && zeros.back().end == range.region.begin) {
                zeros.back().end = range.region.end;
            } else {
                zeros.push_back({range.region.begin, range.region.end});
            }
        }
    }

    void emit_launches(std::int64_t t, std::uint32_t bucket) {
        const std::int64_t call = live_ranges_.call(t, bucket);
        struct Due {
            std::int64_t order;
            Launch launch;
        };
        std::vector<Due> due;
        for (const Piece& piece : live_ranges_.pieces) {
            const std::int64_t late = call - piece.launch;
            if (modulo(late, live_ranges_.calls()) != 0) {
                continue;
            }
            const LiveRange& range = live_ranges_.ranges[piece.region];
            if (range.direct && forwarded(range.region.bucket)) {
                continue;
            }
            const std::int64_t periods = late / live_ranges_.calls();
            const std::int64_t number = piece.sum + periods * sums(range);
            Launch launch;
            launch.region = piece.region;
            launch.slot = slot_of(piece.region, number);
            launch.begin = piece.begin;
            launch.end = piece.end;
            launch.lane = piece.lane;
            launch.operation = piece.operation;
            launch.to_caller = range.direct || into_caller(range, range.sums[piece.sum]);
            due.push_back({piece.order + periods * live_ranges_.orders, launch});
        }
        std::stable_sort(due.begin(), due.end(),
                         [](const Due& a, const Due& b) { return a.order < b.order; });
        for (const Due& d : due) {
            if (d.launch.halves()) {
                add_half(d.launch);
            } else {
                add_launch(d.launch, script_.shapes[bucket]);
            }
        }
    }

    // An element too many for equal parts is summed by itself, with the first half.
    void add_half(Launch launch) {
        const std::uint32_t bucket = live_ranges_.ranges[launch.region].region.bucket;
        const std::uint64_t row = element_size(script_.shapes[bucket].type) * options_.ranks;
        const std::uint64_t end = launch.end;
        launch.end -= (launch.end - launch.begin) % row;
        if (launch.begin < launch.end) {
            script_.launches.push_back(launch);
        }
        if (launch.end < end && launch.operation == planner::Operation::ReduceScatter) {
            launch.begin = std::exchange(launch.end, end);
            launch.operation = planner::Operation::AllReduce;
            script_.launches.push_back(launch);
        }
    }

    // In stretches, where it is carried by way of a lane's staging memory.
    void add_launch(Launch launch, const Shape& shape) {
        const std::uint64_t end = launch.end;
        const std::uint64_t most =
            moves_shards(shape.function) ? stretch(shape) : end - launch.begin;
        for (; launch.begin < end; launch.begin = launch.end) {
            launch.end = std::min(end, launch.begin + most);
            script_.launches.push_back(launch);
        }
    }

    const CompileOptions& options_;
    LiveRanges live_ranges_;
    std::string& problem_;
    std::vector<std::uint32_t> slots_;
    Script script_;
};

}  // namespace

Script compile(const planner::Plan& plan, std::span<const Shape> shapes,
               const CompileOptions& options, std::string& problem) {
    problem.clear();
    LiveRanges live_ranges = find_live_ranges(plan, shapes, options, problem);
    if (!problem.empty()) {
        return {};
    }
    return Compiler(plan, shapes, options, std::move(live_ranges), problem).run();
}

}  // namespace deft::executor
