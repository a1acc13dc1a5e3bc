// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/live_ranges.h"

#include <algorithm>
#include <map>
#include <set>

#include "shim/nccl/call.h"

namespace deft::executor {
namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

std::string name(std::uint32_t bucket) {
    return "bucket " + std::to_string(bucket);
}

bool floating(int type) {
    return type == DEFT_NCCL_FLOAT16 || type == DEFT_NCCL_FLOAT32 || type == DEFT_NCCL_FLOAT64 ||
           type == DEFT_NCCL_BFLOAT16;
}

class Finder {
public:
    Finder(const planner::Plan& plan, std::span<const Shape> shapes, const CompileOptions& options,
           std::string& problem)
        : plan_(plan), shapes_(shapes), options_(options), problem_(problem) {}

    LiveRanges run() {
        found_.period = plan_.period;
        found_.buckets = static_cast<std::uint32_t>(shapes_.size());
        if (plan_fits() && ranges_fit()) {
            for (std::uint32_t b = 0; b < found_.buckets && problem_.empty(); ++b) {
                find_regions(b);
            }
            if (problem_.empty() && find_pieces()) {
                find_launches();
            }
        }
        return std::move(found_);
    }

private:
    bool layers() const { return plan_.barrier == planner::Barrier::Layer; }

    bool refuse(std::string why) {
        if (problem_.empty()) {
            problem_ = std::move(why);
        }
        return false;
    }

    bool plan_fits() {
        if (plan_.period == 0 || plan_.period > 4096 || shapes_.empty() ||
            plan_.bucket_bytes.size() != shapes_.size()) {
            return refuse("the plan is for " + std::to_string(plan_.bucket_bytes.size()) +
                          " buckets, the job has " + std::to_string(shapes_.size()));
        }
        for (std::uint32_t b = 0; b < shapes_.size(); ++b) {
            if (shapes_[b].bytes() == 0 || shapes_[b].bytes() != plan_.bucket_bytes[b]) {
                return refuse(name(b) + " has " + std::to_string(shapes_[b].bytes()) +
                              " bytes, in the plan " + std::to_string(plan_.bucket_bytes[b]));
            }
            const bool sums = shapes_[b].function != Function::AllGather;
            if ((sums && shapes_[b].op < 0) || shapes_[b].op >= DEFT_NCCL_NUM_OPS) {
                return refuse(name(b) + " is reduced with an operation of its communicator");
            }
            if (series_of(shapes_[b].function) != series_of(shapes_[0].function)) {
                return refuse("the plan is for all-reduces and for shards");
            }
        }
        return true;
    }

    bool range_fits(const char* what, std::uint32_t bucket, std::uint64_t begin,
                    std::uint64_t end) {
        if (bucket >= shapes_.size()) {
            return refuse(std::string(what) + " of a bucket that is not there");
        }
        const std::uint64_t element = element_size(shapes_[bucket].type);
        if (begin >= end || end > shapes_[bucket].bytes() || begin % element != 0 ||
            end % element != 0) {
            return refuse(std::string(what) + " of " + name(bucket) + " has a bad range");
        }
        return true;
    }

    bool ranges_fit() {
        for (const planner::Transfer& t : plan_.transfers) {
            if (!range_fits("a transfer", t.bucket, t.begin, t.end)) {
                return false;
            }
            if (t.operation != planner::Operation::AllReduce && !goes_in_halves(t)) {
                return false;
            }
            if (t.link >= options_.lanes || t.link >= 64) {
                return refuse("the plan uses link " + std::to_string(t.link) + " of " +
                              std::to_string(options_.lanes) + " lanes");
            }
            found_.orders = std::max(found_.orders, t.order + 1);
        }
        if (layers() && (!options_.layers || plan_.period != 1)) {
            return refuse("the plan is for a job whose layers wait for their own gradients");
        }
        for (const planner::Delivery& d : plan_.deliveries) {
            if (!range_fits("a delivery", d.bucket, d.begin, d.end)) {
                return false;
            }
            if (d.iteration >= plan_.period || d.generation.count == 0 ||
                d.generation.newest() > static_cast<std::int64_t>(d.iteration)) {
                return refuse(name(d.bucket) + " would be delivered before it exists");
            }
        }
        return true;
    }

    // Of more ranks NCCL adds in an order that depends on where a part begins, and a half would not
    // have the bits of the whole sum. Of two, addition has one order.
    bool goes_in_halves(const planner::Transfer& t) {
        if (!layers() || moves_shards(shapes_[t.bucket].function)) {
            return refuse(std::string("a sum goes by ") + planner::to_string(t.operation) +
                          " only where layers wait for their own gradients");
        }
        return options_.ranks == 2 ||
               refuse(std::string("a sum goes by ") + planner::to_string(t.operation) +
                      " between two ranks only, here are " + std::to_string(options_.ranks));
    }

    // A generation in the numbering of Sum; `shift` periods were added.
    Sum normal(const planner::Generation& generation, std::int64_t& shift) const {
        const std::int64_t periods = floor_div(generation.newest(), plan_.period);
        shift = -periods;
        return {generation.newest() - periods * plan_.period, generation.count, 0};
    }

    void find_regions(std::uint32_t bucket) {
        std::set<std::uint64_t> cuts{0, shapes_[bucket].bytes()};
        for (const planner::Delivery& d : plan_.deliveries) {
            if (d.bucket == bucket) {
                cuts.insert({d.begin, d.end});
            }
        }
        const std::size_t first = found_.ranges.size();
        for (auto at = cuts.begin(); std::next(at) != cuts.end(); ++at) {
            std::vector<Sum> sums;
            for (const planner::Delivery& d : plan_.deliveries) {
                if (d.bucket == bucket && d.begin <= *at && *std::next(at) <= d.end) {
                    std::int64_t shift = 0;
                    Sum sum = normal(d.generation, shift);
                    sum.delay = d.delay();
                    sums.push_back(sum);
                }
            }
            std::sort(sums.begin(), sums.end(),
                      [](const Sum& a, const Sum& b) { return a.newest < b.newest; });
            if (found_.ranges.size() > first && found_.ranges.back().sums == sums) {
                found_.ranges.back().region.end = *std::next(at);
                continue;
            }
            LiveRange range;
            range.region.bucket = bucket;
            range.region.begin = *at;
            range.region.end = *std::next(at);
            range.sums = std::move(sums);
            found_.ranges.push_back(std::move(range));
        }
        for (std::size_t i = first; i < found_.ranges.size(); ++i) {
            LiveRange& range = found_.ranges[i];
            range.region.whole = found_.ranges.size() - first == 1;
            if (!each_gradient_once(range) || !allowed(range)) {
                return;
            }
        }
    }

    bool each_gradient_once(const LiveRange& range) {
        bool good = !range.sums.empty();
        for (std::size_t i = 0; good && i < range.sums.size(); ++i) {
            const std::int64_t before =
                i > 0 ? range.sums[i - 1].newest : range.sums.back().newest - plan_.period;
            good = range.sums[i].newest - before == range.sums[i].count;
        }
        return good || refuse("some gradient of " + name(range.region.bucket) +
                              " would be delivered twice or never");
    }

    // What may be kept and added up before it is delivered.
    bool can_wait(const Shape& shape, std::uint32_t bucket) {
        if (moves_shards(shape.function)) {
            return refuse(name(bucket) + " is one of shards, which can't wait");
        }
        if (!floating(shape.type) || (shape.op != DEFT_NCCL_SUM && shape.op != DEFT_NCCL_AVG)) {
            return refuse(name(bucket) + " is no sum of floating-point numbers");
        }
        if (shape.type == DEFT_NCCL_FLOAT16 && !options_.delay_half) {
            return refuse(name(bucket) +
                          " is float16: its scale may change before it is delivered");
        }
        return true;
    }

    bool allowed(LiveRange& range) {
        const Shape& shape = shapes_[range.region.bucket];
        std::map<std::int64_t, std::uint32_t> merged;  // by update, modulo the period
        std::uint32_t delay = 0;
        std::uint32_t merge = 0;
        range.direct = true;
        for (const Sum& sum : range.sums) {
            delay = std::max(delay, sum.delay);
            merge = std::max(merge, merged[sum.update() % plan_.period] += sum.count);
            range.direct = range.direct && sum.count == 1 && sum.delay == 0;
        }
        if (delay > options_.max_delay) {
            return refuse(name(range.region.bucket) + " would be " + std::to_string(delay) +
                          " iterations late, the cap is " + std::to_string(options_.max_delay));
        }
        if (!options_.residual && merge > options_.max_merge) {
            return refuse(name(range.region.bucket) + " would merge " + std::to_string(merge) +
                          " iterations, the cap is " + std::to_string(options_.max_merge));
        }
        if (!range.direct && layers()) {
            return refuse("a plan under which layers wait for their own neither delays nor merges");
        }
        if (!range.direct && !can_wait(shape, range.region.bucket)) {
            return false;
        }
        range.region.predicted = delay > 0 && options_.history > 0 && !options_.residual;
        return true;
    }

    bool find_pieces() {
        for (const planner::Transfer& t : plan_.transfers) {
            std::int64_t shift = 0;
            const Sum sum = normal(t.generation, shift);
            std::uint64_t left = t.end - t.begin;
            for (std::uint32_t r = 0; r < found_.ranges.size(); ++r) {
                const LiveRange& range = found_.ranges[r];
                const std::uint64_t begin = std::max(t.begin, range.region.begin);
                const std::uint64_t end = std::min(t.end, range.region.end);
                if (range.region.bucket != t.bucket || begin >= end) {
                    continue;
                }
                const auto found =
                    std::find_if(range.sums.begin(), range.sums.end(), [&sum](const Sum& s) {
                        return s.newest == sum.newest && s.count == sum.count;
                    });
                if (found == range.sums.end()) {
                    return refuse(name(t.bucket) + " sends a sum that is never delivered");
                }
                Piece piece;
                piece.region = r;
                piece.sum = static_cast<std::uint32_t>(found - range.sums.begin());
                piece.begin = begin;
                piece.end = end;
                piece.lane = t.link;
                piece.operation = t.operation;
                piece.order = std::int64_t{t.order} + shift * found_.orders;
                found_.pieces.push_back(piece);
                left -= end - begin;
            }
            if (left != 0) {
                return refuse(name(t.bucket) + " sends bytes that are never delivered");
            }
        }
        return all_sent() && all_gathered();
    }

    // Every half has its other one behind it on the same lane, of the same bytes.
    bool all_gathered() {
        std::size_t scattered = 0;
        std::size_t gathered = 0;
        for (const Piece& piece : found_.pieces) {
            gathered += piece.operation == planner::Operation::AllGather ? 1 : 0;
            if (piece.operation != planner::Operation::ReduceScatter) {
                continue;
            }
            ++scattered;
            if (std::count_if(found_.pieces.begin(), found_.pieces.end(), [&](const Piece& other) {
                    return other.operation == planner::Operation::AllGather &&
                           other.region == piece.region && other.begin == piece.begin &&
                           other.end == piece.end && other.lane == piece.lane &&
                           other.order > piece.order;
                }) != 1) {
                return refuse(name(found_.ranges[piece.region].region.bucket) +
                              " has a reduce-scatter without the all-gather of its bytes");
            }
        }
        return scattered == gathered || refuse("there are all-gathers of what is not scattered");
    }

    bool all_sent() {
        std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<const Piece*>> sent;
        for (const Piece& piece : found_.pieces) {
            if (piece.operation != planner::Operation::AllGather) {  // those have been sent
                sent[{piece.region, piece.sum}].push_back(&piece);
            }
        }
        for (std::uint32_t r = 0; r < found_.ranges.size(); ++r) {
            const LiveRange& range = found_.ranges[r];
            for (std::uint32_t s = 0; s < range.sums.size(); ++s) {
                auto& pieces = sent[{r, s}];
                std::sort(pieces.begin(), pieces.end(),
                          [](const Piece* a, const Piece* b) { return a->begin < b->begin; });
                std::uint64_t at = range.region.begin;
                for (const Piece* piece : pieces) {
                    if (piece->begin != at) {
                        return refuse(name(range.region.bucket) + " sends bytes twice or never");
                    }
                    at = piece->end;
                }
                if (at != range.region.end) {
                    return refuse(name(range.region.bucket) +
                                  " delivers bytes that are never sent");
                }
            }
        }
        return true;
    }

    // Runs a number of periods, lane by lane in plan order, until launches repeat.
    void find_launches() {
        constexpr std::int64_t kPeriods = 24;
        std::stable_sort(found_.pieces.begin(), found_.pieces.end(),
                         [](const Piece& a, const Piece& b) { return a.order < b.order; });
        struct Item {
            std::int64_t order;
            std::size_t piece;
            std::int64_t period;
        };
        std::map<std::uint32_t, std::vector<Item>> lanes;
        for (std::int64_t n = 0; n < kPeriods; ++n) {
            for (std::size_t p = 0; p < found_.pieces.size(); ++p) {
                lanes[found_.pieces[p].lane].push_back(
                    {found_.pieces[p].order + n * found_.orders, p, n});
            }
        }
        for (auto& [lane, items] : lanes) {
            std::stable_sort(items.begin(), items.end(),
                             [](const Item& a, const Item& b) { return a.order < b.order; });
            std::int64_t reached = 0;
            for (const Item& item : items) {
                Piece& piece = found_.pieces[item.piece];
                const LiveRange& range = found_.ranges[piece.region];
                const Sum& sum = range.sums[piece.sum];
                const std::int64_t offset = item.period * found_.calls();
                const std::int64_t ready = found_.call(sum.newest, range.region.bucket) + offset;
                // Nobody waits for a layer's sum before the last call of the iteration.
                const std::uint32_t waits = layers() ? found_.buckets - 1 : range.region.bucket;
                const std::int64_t due = found_.call(sum.update(), waits) + offset;
                const std::int64_t at = std::min(std::max(ready, reached), due);
                reached = std::max(reached, at);
                piece.launch = at - offset;  // that of the last period stays
            }
        }
    }

    const planner::Plan& plan_;
    std::span<const Shape> shapes_;
    const CompileOptions& options_;
    std::string& problem_;
    LiveRanges found_;
};

}  // namespace

LiveRanges find_live_ranges(const planner::Plan& plan, std::span<const Shape> shapes,
                            const CompileOptions& options, std::string& problem) {
    return Finder(plan, shapes, options, problem).run();
}

}  // namespace deft::executor
