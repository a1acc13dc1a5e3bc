// SPDX-License-Identifier: Apache-2.0
// Second half of compiling a plan: shadow slots, and the steps of each call.
#include <algorithm>
#include <limits>

#include "shim/executor/lives.h"

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
             const CompileOptions& options, Lives lives, std::string& problem)
        : options_(options), lives_(std::move(lives)), problem_(problem) {
        script_.shapes.assign(shapes.begin(), shapes.end());
        script_.lanes = options.lanes;
        script_.fingerprint = plan.fingerprint();
        script_.residual = options.residual;
    }

    Script run() {
        if (choose_slots()) {
            number_slots();
            for (std::int64_t t = 0; t < script_.period; ++t) {
                for (std::uint32_t b = 0; b < lives_.buckets; ++b) {
                    emit(t, b);
                }
            }
        }
        return std::move(script_);
    }

private:
    std::int64_t sums(const Life& life) const {
        return static_cast<std::int64_t>(life.sums.size());
    }

    // The sum number i of a region, counted on over the periods: first and last call that need its
    // slot.
    std::int64_t from(const Life& life, std::int64_t i) const {
        const Sum& sum = life.sums[static_cast<std::size_t>(modulo(i, sums(life)))];
        return lives_.call(sum.first(), life.region.bucket) + period_of(life, i);
    }
    std::int64_t until(const Life& life, std::int64_t i) const {
        std::int64_t last = 0;
        const std::int64_t kept = life.region.predicted ? options_.history : 0;
        for (std::int64_t k = i; k <= i + kept; ++k) {
            const Sum& sum = life.sums[static_cast<std::size_t>(modulo(k, sums(life)))];
            last =
                std::max(last, lives_.call(sum.update(), life.region.bucket) + period_of(life, k));
        }
        return last;
    }
    std::int64_t period_of(const Life& life, std::int64_t i) const {
        return (i - modulo(i, sums(life))) / sums(life) * lives_.calls();
    }

    // Slots taken in turn: the fewest so that no slot is written before it is free. In one call
    // gradients are taken in before sums are delivered, so "free" means: in an earlier call.
    std::uint32_t fewest_slots(const Life& life) const {
        for (std::uint32_t n = 1; n <= kMostSlots; ++n) {
            bool enough = true;
            for (std::int64_t i = 0; i < sums(life); ++i) {
                enough = enough && from(life, i + n) > until(life, i);
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
        for (const Life& life : lives_.lives) {
            fewest.push_back(life.direct ? 0 : fewest_slots(life));
        }
        std::uint64_t best = std::numeric_limits<std::uint64_t>::max();
        for (std::uint32_t repeats = 1; repeats <= kMostRepeats; ++repeats) {
            if (std::uint64_t{repeats} * static_cast<std::uint64_t>(lives_.calls()) > kMostCalls) {
                break;
            }
            std::uint64_t bytes = 0;
            std::vector<std::uint32_t> slots;
            for (std::size_t r = 0; r < fewest.size(); ++r) {
                const auto turns =
                    static_cast<std::uint32_t>(lives_.lives[r].sums.size()) * repeats;
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
                bytes += n * padded(lives_.lives[r].region);
            }
            if (bytes < best) {
                best = bytes;
                script_.period = lives_.period * repeats;
                slots_ = std::move(slots);
            }
        }
        if (slots_.size() != lives_.lives.size()) {
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
        for (std::uint32_t r = 0; r < lives_.lives.size(); ++r) {
            Life& life = lives_.lives[r];
            life.region.slots = slots_[r];
            life.region.first_slot = static_cast<std::uint32_t>(script_.slots.size());
            for (std::uint32_t k = 0; k < slots_[r]; ++k) {
                script_.slots.push_back({r, script_.shadow_bytes});
                script_.shadow_bytes += padded(life.region);
            }
            script_.regions.push_back(life.region);
            std::vector<std::uint32_t> merged(lives_.period);
            for (const Sum& sum : life.sums) {
                script_.max_delay = std::max(script_.max_delay, sum.delay);
                auto& count = merged[static_cast<std::size_t>(sum.update()) % lives_.period];
                script_.max_merge = std::max(script_.max_merge, count += sum.count);
                script_.interval = std::max(script_.interval, sum.count);
            }
        }
    }

    std::uint32_t slot_of(std::uint32_t r, std::int64_t i) const {
        const Region& region = lives_.lives[r].region;
        return region.slots == 0
                   ? kDirect
                   : region.first_slot + static_cast<std::uint32_t>(modulo(i, region.slots));
    }

    // Sums of a region that are delivered in the update of iteration t: numbers over the periods.
    std::vector<std::int64_t> delivered(const Life& life, std::int64_t t) const {
        std::vector<std::int64_t> found;
        for (std::int64_t s = 0; s < sums(life); ++s) {
            const std::int64_t late = t - life.sums[static_cast<std::size_t>(s)].update();
            if (modulo(late, lives_.period) == 0) {
                found.push_back(s +
                                (late - modulo(late, lives_.period)) / lives_.period * sums(life));
            }
        }
        std::sort(found.begin(), found.end());
        return found;
    }

    // The lanes write the sum into the caller's buffer: it is delivered by the call that completes
    // it, alone, and nobody needs it later.
    bool into_caller(const Life& life, const Sum& sum) const {
        if (sum.delay != 0 || life.region.predicted) {
            return false;
        }
        return std::count_if(life.sums.begin(), life.sums.end(), [&](const Sum& other) {
                   return modulo(other.update() - sum.update(), lives_.period) == 0;
               }) == 1;
    }

    void emit(std::int64_t t, std::uint32_t bucket) {
        Action action;
        action.accumulate = size(script_.accumulates);
        action.launch = size(script_.launches);
        action.deliver = size(script_.deliveries);
        action.zero = size(script_.zeros);
        action.forward = forwarded(bucket);
        for (std::uint32_t r = 0; r < lives_.lives.size(); ++r) {
            if (lives_.lives[r].region.bucket == bucket && !action.forward) {
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

    bool forwarded(std::uint32_t bucket) const {
        const Piece* only = nullptr;
        for (const Piece& piece : lives_.pieces) {
            const Life& life = lives_.lives[piece.region];
            if (life.region.bucket != bucket) {
                continue;
            }
            if (!life.direct || !life.region.whole || piece.begin != life.region.begin ||
                piece.end != life.region.end || piece.lane != options_.forward_lane) {
                return false;
            }
            only = &piece;
        }
        return only != nullptr;
    }

    void emit_accumulate(std::int64_t t, std::uint32_t r) {
        const Life& life = lives_.lives[r];
        if (life.direct) {
            return;
        }
        for (std::int64_t s = 0; s < sums(life); ++s) {
            const Sum& sum = life.sums[static_cast<std::size_t>(s)];
            const std::int64_t ahead = modulo(sum.newest - t, lives_.period);
            if (ahead < sum.count) {
                const std::int64_t number =
                    s + (t + ahead - sum.newest) / lives_.period * sums(life);
                script_.accumulates.push_back({slot_of(r, number), ahead == 0});
                return;
            }
        }
    }

    void emit_deliver(std::int64_t t, std::uint32_t r) {
        const Life& life = lives_.lives[r];
        bool add = false;
        for (const std::int64_t number : delivered(life, t)) {
            const auto s = static_cast<std::size_t>(modulo(number, sums(life)));
            Deliver step;
            step.region = r;
            step.slot = slot_of(r, number);
            step.delay = life.sums[s].delay;
            step.add = add;
            step.in_place = life.direct || into_caller(life, life.sums[s]);
            step.predict = life.region.predicted && step.delay > 0;
            step.previous = slot_of(r, number - 1);
            step.before_previous = slot_of(r, number - 2);
            for (const Piece& piece : lives_.pieces) {
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
            if (size(zeros) > own && zeros.back().end == life.region.begin) {
                zeros.back().end = life.region.end;
            } else {
                zeros.push_back({life.region.begin, life.region.end});
            }
        }
    }

    void emit_launches(std::int64_t t, std::uint32_t bucket) {
        const std::int64_t call = lives_.call(t, bucket);
        struct Due {
            std::int64_t order;
            Launch launch;
        };
        std::vector<Due> due;
        for (const Piece& piece : lives_.pieces) {
            const std::int64_t late = call - piece.launch;
            if (modulo(late, lives_.calls()) != 0) {
                continue;
            }
            const Life& life = lives_.lives[piece.region];
            if (life.direct && forwarded(life.region.bucket)) {
                continue;
            }
            const std::int64_t periods = late / lives_.calls();
            const std::int64_t number = piece.sum + periods * sums(life);
            Launch launch;
            launch.region = piece.region;
            launch.slot = slot_of(piece.region, number);
            launch.begin = piece.begin;
            launch.end = piece.end;
            launch.lane = piece.lane;
            launch.to_caller = life.direct || into_caller(life, life.sums[piece.sum]);
            due.push_back({piece.order + periods * lives_.orders, launch});
        }
        std::stable_sort(due.begin(), due.end(),
                         [](const Due& a, const Due& b) { return a.order < b.order; });
        for (const Due& d : due) {
            script_.launches.push_back(d.launch);
        }
    }

    const CompileOptions& options_;
    Lives lives_;
    std::string& problem_;
    std::vector<std::uint32_t> slots_;
    Script script_;
};

}  // namespace

Script compile(const planner::Plan& plan, std::span<const Shape> shapes,
               const CompileOptions& options, std::string& problem) {
    problem.clear();
    Lives lives = find_lives(plan, shapes, options, problem);
    if (!problem.empty()) {
        return {};
    }
    return Compiler(plan, shapes, options, std::move(lives), problem).run();
}

}  // namespace deft::executor
