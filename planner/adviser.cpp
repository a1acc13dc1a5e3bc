// SPDX-License-Identifier: Apache-2.0
#include "planner/adviser.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "planner/policies/policy.h"
#include "planner/solver/bounds.h"
#include "planner/solver/closed_forms.h"

namespace deft::planner {
namespace {

struct Bounds {
    double order, striped, links, delay, merge, alone, coverage, transfers, measured;
};

std::vector<double> transfer_costs(const Profile& profile, const Link& link,
                                   double Spread::*which) {
    std::vector<double> costs;
    for (const Bucket& bucket : profile.buckets) {
        costs.push_back(bucket.transfer.measured()
                            ? bucket.transfer.*which
                            : link.seconds(static_cast<double>(bucket.bytes)));
    }
    return costs;
}

// What all links move together, in rates of the first.
double relative_speed(const Fabric& fabric) {
    double speeds = 0;
    const double own = fabric.links.front().best_rate();
    for (const Link& link : fabric.links) {
        speeds += link.best_rate() / own;
    }
    speeds = std::min(speeds, fabric.best_rate() / own);
    return speeds >= 1 ? speeds : 1;  // that is no number either
}

// What is bounded and gained is the job as it was timed, over its own link; other links count by
// their rates beside the first.
SeenLinks seen_links(const Profile& profile, const Fabric& fabric) {
    SeenLinks seen;
    const Link timed = link_from_transfers(profile);
    if (timed.name.empty()) {
        seen.given = seen.first = fabric;
        seen.first.links.resize(1);
        seen.all = fabric.links.size() > 1 ? fabric.merged() : fabric;
        return seen;
    }
    seen.first.links.push_back(timed);
    seen.all = seen.first;
    for (CostPoint& point : seen.all.links.front().cost.points) {
        point.seconds /= relative_speed(fabric);
    }
    seen.given = seen.all;
    return seen;
}

// `slower`: than at the median.
Bounds bounds_for(const Profile& profile, const SeenLinks& seen, const std::vector<double>& costs,
                  double slower, const Options& options) {
    const auto least = [&](const Fabric& fabric, Barrier barrier, std::uint32_t delay,
                           std::uint32_t merge) {
        Profile more = profile;
        for (Bucket& bucket : more.buckets) {
            bucket.bytes = static_cast<std::uint64_t>(static_cast<double>(bucket.bytes) * slower);
        }
        return lower_bound(slower == 1 ? profile : more, fabric, barrier, delay, merge);
    };
    const std::uint32_t merge = std::max(1U, options.max_merge);
    const std::uint32_t late = std::min(1U, options.max_delay);
    Bounds b{};
    b.order = least(seen.first, Barrier::Layer, 0, 1);
    b.striped = least(seen.given, Barrier::Update, 0, 1);
    b.links = least(seen.given, Barrier::Layer, 0, 1);
    b.delay = least(seen.given, Barrier::Layer, late, 1);
    b.merge = least(seen.given, Barrier::Layer, options.max_delay, merge);
    b.alone = least(seen.first, Barrier::Layer, options.max_delay, 1);
    b.transfers = std::accumulate(costs.begin(), costs.end(), 0.0);
    b.coverage = profile.compute() > 0 ? b.transfers / profile.compute() : 0;
    b.measured = time_ddp(profile, costs);
    return b;
}

std::string text(const char* format, double a, double b = 0) {
    char buffer[200];
    std::snprintf(buffer, sizeof buffer, format, a, b);
    return buffer;
}

// Pools adjacent violators: neighbours whose times per weight are out of order get their mean.
template <class Weight, class OutOfOrder>
void pool(std::vector<CostPoint>& sizes, Weight weight, OutOfOrder out_of_order) {
    struct Block {
        double seconds, weight;
        std::size_t end;
    };
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        blocks.push_back({sizes[i].seconds, weight(sizes[i]), i + 1});
        while (blocks.size() > 1) {
            const Block top = blocks.back();
            Block& below = blocks[blocks.size() - 2];
            if (!out_of_order(below.seconds / below.weight, top.seconds / top.weight)) {
                break;
            }
            below = {below.seconds + top.seconds, below.weight + top.weight, top.end};
            blocks.pop_back();
        }
    }
    std::size_t i = 0;
    for (const Block& block : blocks) {
        for (; i < block.end; ++i) {
            sizes[i].seconds = block.seconds / block.weight * weight(sizes[i]);
        }
    }
}

std::string range(const Estimate& e) {
    return text("%.2f", e.middle) + text("x (%.2f-%.2f)", e.low, e.high);
}

// What a mode's plan gives over the job as it is, or as it was timed where that was faster.
double given(const Advice& advice, double seconds) {
    return seconds > 0 ? std::min(advice.measured, advice.here.as_is) / seconds : 1;
}

// " (1.87x)", or nothing where no plan gains.
std::string figure(double gain, double noise) {
    return gain > 1 + noise ? text(" (%.2fx)", gain) : "";
}

// Fewer updates are less progress: both figures, as for late ones.
std::string merged_figure(const Advice& advice, const Options& options) {
    const double merged = given(advice, advice.here.merged);
    return merged > 1 + options.noise ? text(" (%.2fx, %.2fx to the same loss)", merged,
                                             merged * advice.here.merged_progress)
                                      : "";
}

// What helps where communication rules: what is given and allowed, with what plans for it gain.
std::string beyond_compute(const Advice& advice, const Fabric& fabric, const Options& options) {
    const double rate = advice.coverage.middle;
    std::string says = advice.compute > 0
                           ? text(rate < 1e6 ? "communication is %.1f times the compute: "
                                             : "communication is %.3g times the compute: ",
                                  rate)
                           : "there is no compute to hide communication under: ";
    if (advice.gain_alone.high > 1 + options.noise) {
        says += options.max_delay > 0 ? "order, delay and larger messages give at most "
                                      : "order and larger messages give at most ";
        says += range(advice.gain_alone) + "; beyond that ";
    }
    const bool more_links = fabric.links.size() > 1 || fabric.striped;
    says += "only more links";
    says += more_links ? figure(given(advice, advice.here.striped), options.noise) : "";
    says += " or fewer updates";
    const bool merges = advice.here.merged < advice.here.late;
    says += merges ? merged_figure(advice, options) : "";
    return says + " help";
}

// What the modes' own plans give.
std::string offered(const Advice& advice, const Options& options) {
    const BenefitPoint& here = advice.here;
    const double late = given(advice, here.late);
    const double order = given(advice, here.layered);
    std::string says;
    if (here.late < here.layered && late * here.late_progress > 1 + options.noise) {
        says = text("one late update per iteration can give %.2fx (%.2fx to the same loss)", late,
                    late * here.late_progress);
    }
    if (order > 1 + options.noise) {
        says +=
            text(says.empty() ? "the best order can give %.2fx" : "; the best order %.2fx", order) +
            ", where layers wait for their own gradients only (DEFT_LAYERWISE=auto)";
    }
    return says.empty()
               ? "keep the job as it is: no plan of a mode gains; no plan at all gives more than " +
                     range(options.max_delay > 0 ? advice.gain_delay : advice.gain_links)
               : says;
}

void judge(Advice& advice, const Fabric& fabric, const Options& options) {
    const double most =
        std::max({advice.gain_order.middle, advice.gain_links.middle, advice.gain_delay.middle});
    const double cr = advice.coverage.middle;
    advice.nothing_to_gain = std::max(most, advice.gain_merge.middle) <= 1 + options.noise;
    if (cr > 1.3 || (advice.compute <= 0 && advice.communication > 0)) {
        advice.verdict = beyond_compute(advice, fabric, options);
    } else if (most <= 1 + options.noise) {
        advice.nothing_to_gain = true;
        advice.verdict = "do nothing: the links are hidden under compute already";
    } else if (cr < 0.5 && most <= 1.2) {
        advice.verdict = "little to gain: keep the job as it is; at most " +
                         range(options.max_delay > 0 ? advice.gain_delay : advice.gain_links);
    } else {
        advice.verdict = offered(advice, options);
    }
}

// Bounds hold for the job that was timed; other links only count by their rates beside the first.
void note_other_links(Advice& advice, const Profile& profile, const Link& reference) {
    double given = 0;
    double timed = 0;
    for (const Bucket& bucket : profile.buckets) {
        if (bucket.transfer.measured()) {
            given += reference.seconds(static_cast<double>(bucket.bytes));
            timed += bucket.transfer.median;
        }
    }
    if (timed > 0 && (given > 1.25 * timed || given < 0.8 * timed)) {
        advice.notes.push_back(
            text("the all-reduces took %.3f ms, and would take %.3f ms on the "
                 "first link given: the bounds use what was measured, the best "
                 "plan the links",
                 timed * 1e3, given * 1e3));
    }
}

// More than a hundred iterations' compute on the links: hardly a job that anybody runs.
constexpr double kMostCoverage = 100;

void add_notes(Advice& advice, const Profile& profile, const Fabric& fabric) {
    if (std::string question = coverage_question(advice.coverage.middle); !question.empty()) {
        advice.notes.push_back(std::move(question));
    }
    if (profile.iteration.measured() && advice.overhead > 0.05 * advice.measured) {
        advice.notes.push_back(
            text("%.0f %% of the iteration is neither compute nor transfers in "
                 "this model: launch, contention, stragglers",
                 100 * advice.overhead / advice.measured));
    }
    // One tensor that comes last and is big cannot be hidden by any order.
    const Bucket& last = profile.buckets.back();
    const double share = static_cast<double>(last.bytes) / static_cast<double>(profile.bytes());
    if (profile.size() > 1 && share > 0.25 && last.ready > 0.9 * profile.backward) {
        advice.notes.push_back(
            text("the last bucket holds %.0f %% of the bytes and is ready when "
                 "backward ends: only delay can hide it",
                 100 * share));
    }
    note_other_links(advice, profile, fabric.links.front());
    if (fabric.links.size() == 1) {
        advice.notes.push_back("one link given: the bound for more links is that of ordering");
    }
}

}  // namespace

std::string coverage_question(double coverage) {
    return coverage > kMostCoverage
               ? text(coverage < 1e6 ? "the transfers take %.0f" : "the transfers take %.3g",
                      coverage) +
                     " times the compute: is the batch meant, or the time of an iteration "
                     "(model:NAME,batch=N or seconds=S)?"
               : "";
}

Link link_from_transfers(const Profile& profile) {
    Link link;
    std::vector<CostPoint> points;
    for (const Bucket& bucket : profile.buckets) {
        if (bucket.transfer.measured() && bucket.transfer.median > 0) {
            points.push_back({static_cast<double>(bucket.bytes), bucket.transfer.median});
        }
    }
    if (points.empty()) {
        return link;
    }
    std::sort(points.begin(), points.end(),
              [](const CostPoint& a, const CostPoint& b) { return a.bytes < b.bytes; });
    // Equal sizes: their mean.
    std::vector<CostPoint> sizes;
    for (std::size_t i = 0; i < points.size();) {
        std::size_t j = i;
        double sum = 0;
        for (; j < points.size() && points[j].bytes == points[i].bytes; ++j) {
            sum += points[j].seconds;
        }
        sizes.push_back({points[i].bytes, sum / static_cast<double>(j - i)});
        i = j;
    }
    // The second keeps what the first has made: times that share a mean fall per byte.
    pool(
        sizes, [](const CostPoint& p) { return p.bytes; },
        [](double less, double more) { return less < more; });
    pool(
        sizes, [](const CostPoint&) { return 1.0; },
        [](double less, double more) { return less > more; });
    link.cost.points = sizes;
    link.cost.straight = true;
    link.name = "measured";
    link.source = "all-reduce times of the job's own buckets";
    return link;
}

Benefit benefit_of(const Profile& profile, const Fabric& fabric, const Options& options) {
    const SeenLinks seen = seen_links(profile, fabric);
    return {benefit_bounds(profile), benefit_at(profile, seen, options),
            benefit_curve(profile, seen, options)};
}

Advice advise(const Profile& profile, const Fabric& fabric, const Options& options) {
    const Link& reference = fabric.links.front();
    const SeenLinks seen = seen_links(profile, fabric);
    const auto bounds = [&](double Spread::*of) {
        double seconds = 0;
        double middle = 0;
        for (const Bucket& bucket : profile.buckets) {
            seconds += bucket.transfer.measured() ? bucket.transfer.*of : 0;
            middle += bucket.transfer.measured() ? bucket.transfer.median : 0;
        }
        return bounds_for(profile, seen, transfer_costs(profile, reference, of),
                          middle > 0 ? seconds / middle : 1, options);
    };
    const Bounds mid = bounds(&Spread::median);
    const Bounds fast = bounds(&Spread::p10);
    const Bounds slow = bounds(&Spread::p90);

    Advice advice;
    const bool timed = profile.iteration.measured();
    advice.measured = timed ? profile.iteration.median : mid.measured;
    advice.compute = profile.compute();
    advice.communication = mid.transfers;
    advice.coverage = {fast.coverage, mid.coverage, slow.coverage};
    advice.bound_order = mid.order;
    advice.bound_striped = mid.striped;
    advice.bound_links = mid.links;
    advice.bound_delay = mid.delay;
    advice.bound_merge = mid.merge;
    // Slow transfers lengthen both the job and its bound; where the job was timed, only the bound.
    const auto gain = [&](double Bounds::*bound) {
        if (timed) {
            const double low = profile.iteration.p10 / (slow.*bound);
            const double high = profile.iteration.p90 / (fast.*bound);
            const double middle = advice.measured / (mid.*bound);
            return Estimate{std::min(low, middle), middle, std::max(high, middle)};
        }
        const double a = fast.measured / (fast.*bound);
        const double b = slow.measured / (slow.*bound);
        const double middle = mid.measured / (mid.*bound);
        return Estimate{std::min({a, b, middle}), middle, std::max({a, b, middle})};
    };
    advice.gain_order = gain(&Bounds::order);
    advice.gain_striped = gain(&Bounds::striped);
    advice.gain_links = gain(&Bounds::links);
    advice.gain_delay = gain(&Bounds::delay);
    advice.gain_merge = gain(&Bounds::merge);
    advice.gain_alone = gain(&Bounds::alone);
    advice.here = benefit_at(profile, seen, options);
    advice.order_cap = advice.compute > 0 ? 1 + profile.forward / advice.compute : 1;
    advice.overhead = std::max(0.0, advice.measured - mid.measured);
    judge(advice, fabric, options);
    add_notes(advice, profile, fabric);
    return advice;
}

}  // namespace deft::planner
