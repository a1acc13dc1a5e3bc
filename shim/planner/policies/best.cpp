// SPDX-License-Identifier: Apache-2.0
// Policy `best`: the fastest plan within the caps, over everything else in this folder and over
// combinations of their ideas:
//   - messages cut over all links so that their parts end together (water-filling), under every
//     order another policy chose for one link as fast as all together;
//   - whole buckets spread over links, largest first or deadline first;
//   - the same over fewer links, where links share a pipe or disturb the compute;
//   - generations of 1..max_merge iterations delivered 1..max_delay iterations late;
//   - reduce-scatters and all-gathers as separate items, where layers wait for themselves only.
// "Do nothing" wins unless something beats it by more than the noise. Ties go to less staleness,
// then to fewer links.
#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "shim/planner/bounds.h"
#include "shim/planner/evaluate.h"
#include "shim/planner/policies/builder.h"
#include "shim/planner/policies/policy.h"
#include "shim/planner/water_filling.h"

namespace deft::planner {
namespace {

// A plan made for one merged link, its messages cut over the links of the real fabric.
Plan spread(const Plan& plan, const Profile& profile, const Fabric& fabric,
            const Options& options) {
    PlanBuilder builder(plan.policy.c_str(), plan.barrier, plan.period);
    for (const Transfer& t : plan.transfers) {
        const auto shares = split_bytes(water_fill(fabric, static_cast<double>(t.bytes())),
                                        t.bytes(), options.grain, options.least_piece);
        std::uint64_t at = t.begin;
        for (std::uint32_t j = 0; j < shares.size(); ++j) {
            if (shares[j] == 0) {
                continue;
            }
            Transfer& part = builder.add(t.bucket, at, at + shares[j], j);
            part.operation = t.operation;
            part.iteration = t.iteration;
            part.stage = t.stage;
            part.generation = t.generation;
            at += shares[j];
        }
    }
    builder.plan().deliveries = plan.deliveries;
    return builder.finish(profile, fabric);
}

// Generations of `merge` iterations, sent as their gradients become ready in the last of them and
// used `delay` iterations later. Cut over all links, or whole buckets.
Plan generations(const Profile& profile, const Fabric& fabric, const Options& options,
                 std::uint32_t merge, std::uint32_t delay, bool cut) {
    PlanBuilder builder("generations", Barrier::Update, merge);
    const std::size_t m = fabric.links.size();
    const std::uint32_t n = static_cast<std::uint32_t>(profile.size());
    std::vector<std::uint32_t> link(n, 0);
    if (!cut) {
        std::vector<std::uint32_t> order(n);
        for (std::uint32_t i = 0; i < n; ++i) {
            order[i] = i;
        }
        std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
            return profile.buckets[a].bytes > profile.buckets[b].bytes;
        });
        std::vector<double> busy(m, 0);
        for (const std::uint32_t i : order) {
            double best = INFINITY;
            for (std::uint32_t j = 0; j < m; ++j) {
                const double end = busy[j] + fabric.links[j].seconds(
                                                 static_cast<double>(profile.buckets[i].bytes));
                if (end < best) {
                    best = end;
                    link[i] = j;
                }
            }
            busy[link[i]] = best;
        }
    }
    const Generation sent{0, merge};
    const std::uint32_t at = (merge - 1 + delay) % merge;
    const Generation delivered{
        static_cast<std::int32_t>(at) - static_cast<std::int32_t>(delay + merge - 1), merge};
    for (std::uint32_t i = 0; i < n; ++i) {
        const std::uint64_t bytes = profile.buckets[i].bytes;
        std::vector<std::uint64_t> shares(m, 0);
        shares[link[i]] = bytes;
        if (cut) {
            shares = split_bytes(water_fill(fabric, static_cast<double>(bytes)), bytes,
                                 options.grain, options.least_piece);
        }
        std::uint64_t begin = 0;
        for (std::uint32_t j = 0; j < m; ++j) {
            if (shares[j] > 0) {
                Transfer& t = builder.add(i, begin, begin + shares[j], j);
                t.iteration = merge - 1;
                t.generation = sent;
                begin += shares[j];
            }
        }
        builder.deliver(at, i, 0, bytes, delivered);
    }
    return builder.finish(profile, fabric);
}

// Seconds per iteration the busiest link is held.
double busiest(const Plan& plan, const Fabric& fabric) {
    std::vector<double> held(fabric.links.size(), 0);
    for (const Transfer& t : plan.transfers) {
        held[t.link] += fabric.links[t.link].occupancy(static_cast<double>(t.bytes()));
    }
    return *std::max_element(held.begin(), held.end()) / plan.period;
}

std::size_t links_used(const Plan& plan) {
    std::set<std::uint32_t> used;
    for (const Transfer& t : plan.transfers) {
        used.insert(t.link);
    }
    return used.size();
}

// Sets of links that may be faster than all together, these left out: the k fastest, and, where
// links share or disturb and are few, every other set.
std::vector<std::vector<std::uint32_t>> fewer_links(const Profile& profile, const Fabric& fabric) {
    const double mean = static_cast<double>(profile.bytes()) / static_cast<double>(profile.size());
    const auto order = by_speed(fabric, mean);
    std::vector<std::vector<std::uint32_t>> sets;
    const bool apart = fabric.groups.empty() &&
                       std::all_of(fabric.links.begin(), fabric.links.end(), [](const Link& link) {
                           return link.compute_slowdown == 0 && link.overlap_penalty == 0;
                       });
    if (!apart && order.size() <= 4) {
        for (std::uint32_t mask = 1; mask + 1 < 1U << order.size(); ++mask) {
            auto& set = sets.emplace_back();
            for (std::size_t k = 0; k < order.size(); ++k) {
                if ((mask >> k & 1) != 0) {
                    set.push_back(order[k]);
                }
            }
        }
    } else {
        for (std::size_t k = 1; k < order.size(); ++k) {
            sets.emplace_back(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
        }
    }
    return sets;
}

// A plan for some links of the fabric, as one for all of it.
Plan renumbered(Plan plan, const std::vector<std::uint32_t>& links, const Profile& profile,
                const Fabric& fabric) {
    for (Transfer& t : plan.transfers) {
        t.link = links[t.link];
    }
    evaluate(plan, profile, fabric);
    return plan;
}

class Choice {
public:
    Choice(const Options& options, Plan first) : options_(options), best_(std::move(first)) {}

    double seconds(const Plan& plan) const {
        const double per = plan.predicted.iteration;
        return options_.objective == Objective::UpdateTime && plan.predicted.updates > 0
                   ? per / plan.predicted.updates
                   : per;
    }
    void offer(Plan plan) {
        const Prediction& p = plan.predicted;
        if (p.max_delay > options_.max_delay || p.max_merge > options_.max_merge ||
            plan.period > options_.max_period || !std::isfinite(p.iteration) ||
            (options_.barrier == Barrier::Update && plan.barrier == Barrier::Layer)) {
            return;
        }
        const double mine = seconds(plan);
        const double theirs = seconds(best_);
        const auto secondary = [](const Plan& a) {
            return std::tuple(a.predicted.max_age, a.predicted.mean_age, links_used(a),
                              a.transfers.size());
        };
        // A tie is measured against the fastest seen, so that ties do not add up.
        constexpr double kTie = 1 + 1e-4;
        fastest_ = std::min({fastest_, mine, theirs});
        if (theirs > fastest_ * kTie
                ? mine <= fastest_
                : mine <= fastest_ * kTie && secondary(plan) < secondary(best_)) {
            best_ = std::move(plan);
        }
    }
    // Nothing of this kind can be better by more than a tie.
    bool settled(double bound) const { return seconds(best_) <= bound * (1 + 1e-4); }
    Plan& best() { return best_; }

private:
    const Options& options_;
    Plan best_;
    double fastest_ = INFINITY;
};

}  // namespace

Plan plan_best(const Profile& profile, const Fabric& fabric, const Options& options) {
    const bool many = fabric.links.size() > 1;
    const Fabric one = many && options.allow_split ? fabric.merged() : fabric;
    Options within = options;
    const Plan as_is = plan_none(profile, fabric, options);
    Choice choice(options, as_is);
    const auto consider = [&](Plan (*make)(const Profile&, const Fabric&, const Options&),
                              const Options& with) {
        choice.offer(make(profile, fabric, with));
        if (many && options.allow_split) {
            choice.offer(spread(make(profile, one, with), profile, fabric, with));
        }
    };
    // Same numbers first: they win every tie.
    const double bound = lower_bound(profile, fabric, options.barrier, 0, 1);
    if (!choice.settled(bound)) {
        if (options.barrier == Barrier::Layer) {
            choice.offer(plan_wfbp(profile, fabric, within));  // else it is the job as it is
        }
        if (many && options.allow_split) {
            choice.offer(spread(plan_wfbp(profile, one, within), profile, fabric, within));
        }
        consider(plan_mg_wfbp, within);
        if (!choice.settled(bound)) {
            choice.offer(plan_edf(profile, fabric, within));
        }
        for (const auto& links : fewer_links(profile, fabric)) {
            Fabric few = fabric;
            few.links.clear();
            for (const std::uint32_t j : links) {
                few.links.push_back(fabric.links[j]);
            }
            if (choice.settled(lower_bound(profile, few, options.barrier, 0, 1))) {
                continue;
            }
            choice.offer(renumbered(plan_edf(profile, few, within), links, profile, fabric));
            if (links.size() > 1 && options.allow_split) {
                const Plan order = plan_wfbp(profile, few.merged(), within);
                choice.offer(
                    renumbered(spread(order, profile, few, within), links, profile, fabric));
            }
        }
        if (options.barrier == Barrier::Layer) {
            consider(plan_dear, within);
            consider(plan_us_byte, within);
            consider(plan_bytescheduler, within);
            within.partition_bytes = 0;
            within.grain = std::max<std::uint64_t>(within.grain, within.least_piece);
            consider(plan_bytescheduler, within);
            within = options;
        }
    }
    for (std::uint32_t merge = 1; merge <= std::min(options.max_merge, 8U); ++merge) {
        // Merging that is not late still has the updates in between for nothing.
        for (std::uint32_t delay = merge == 1 ? 1 : 0; delay <= std::min(options.max_delay, 8U);
             ++delay) {
            const double reach = lower_bound(profile, fabric, Barrier::Update, delay, merge);
            const double per_update =
                options.objective == Objective::UpdateTime ? reach * merge : reach;
            bool full = true;  // more delay cannot help: the links are busy all the time
            for (const bool cut : {false, true}) {
                if (choice.settled(per_update) || (cut && !(many && options.allow_split))) {
                    continue;
                }
                Plan plan = generations(profile, fabric, options, merge, delay, cut);
                full = full && plan.predicted.iteration <= busiest(plan, fabric) * (1 + 1e-4);
                choice.offer(std::move(plan));
            }
            if (full) {
                break;
            }
        }
    }
    const double least =
        lower_bound(profile, fabric, options.barrier, options.max_delay, options.max_merge);
    if (!choice.settled(least) && options.max_merge > 1) {
        choice.offer(plan_covap(profile, fabric, options));
    }
    if (!choice.settled(least) && options.max_delay > 0) {
        Options quick = options;
        quick.effort = std::min(options.effort, 250U);
        choice.offer(plan_deft(profile, fabric, quick));
    }
    Plan plan = std::move(choice.best());
    if (choice.seconds(plan) >= choice.seconds(as_is) * (1 - options.noise)) {
        plan = as_is;
    }
    plan.policy = "best";
    plan.predicted.bound = least;
    plan.predicted.gap = plan.predicted.iteration / least - 1;
    return plan;
}

Plan plan_generations(const Profile& profile, const Fabric& fabric, const Options& options,
                      std::uint32_t merge, std::uint32_t delay) {
    return generations(profile, fabric, options, merge, delay, true);
}

}  // namespace deft::planner
