// SPDX-License-Identifier: Apache-2.0
// Policy `best`: the plan with the least expected time to the same loss (Options::objective,
// progress.h) within the caps, over everything else in this folder and over combinations of their
// ideas:
//   - messages cut over all links so that their parts end together (water-filling), under every
//     order another policy chose for one link as fast as all together;
//   - whole buckets spread over links, largest first or deadline first;
//   - the same over fewer links, where links share a pipe or disturb the compute;
//   - generations of 1..max_merge iterations delivered 1..max_delay iterations late;
//   - the same at frequencies between;
//   - the same of which only what backward ends with is late (Options::mixed_ages);
//   - reduce-scatters and all-gathers as separate items, where layers wait for themselves only.
// "Do nothing" wins unless something beats it by more than the noise. Ties go to less staleness,
// then to fewer links; where progress counts, to more updates and then to less late bytes.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "planner/model/progress.h"
#include "planner/policies/builder.h"
#include "planner/policies/choice.h"
#include "planner/policies/mixed_ages.h"
#include "planner/policies/policy.h"
#include "planner/policies/spreading.h"
#include "planner/simulator/evaluate.h"
#include "planner/solver/bounds.h"
#include "planner/solver/plan_floor.h"

namespace deft::planner {
namespace {

// Sets of links that may be faster than all together, these left out: the k fastest, and, where
// links share or disturb and are few, every other set.
std::vector<std::vector<std::uint32_t>> fewer_links(const Profile& profile, const Fabric& fabric) {
    const double mean = static_cast<double>(profile.bytes()) / static_cast<double>(profile.size());
    const auto order = by_speed(fabric, mean);
    std::vector<std::vector<std::uint32_t>> sets;
    if (!apart(fabric) && order.size() <= 4) {
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
    arrange(plan, profile, fabric);
    return plan;
}

// Plans that change no numbers.
class Synchronous {
public:
    Synchronous(const Profile& profile, const Fabric& fabric, const Options& options,
                Choice& choice, Shares& cut)
        : profile_(profile),
          fabric_(fabric),
          options_(options),
          choice_(choice),
          cut_(cut),
          split_(fabric.links.size() > 1 && options.allow_split),
          one_(split_ ? fabric.merged() : fabric) {}

    void offer_all() {
        const double bound = lower_bound(profile_, fabric_, options_.barrier, 0, 1);
        if (choice_.settled(bound) && choice_.hopeless(bound, 0)) {
            return;
        }
        if (options_.barrier == Barrier::Layer) {
            choice_.offer(plan_wfbp(profile_, fabric_, options_));  // else it is the job as it is
        }
        if (split_) {
            choice_.offer(
                spread(plan_wfbp(profile_, one_, options_), profile_, fabric_, options_, cut_));
        }
        consider(plan_mg_wfbp, options_);
        if (!choice_.settled(bound)) {
            choice_.offer(plan_edf(profile_, fabric_, options_));
        }
        fewer();
        if (options_.barrier == Barrier::Layer) {
            if (options_.halves) {
                consider(plan_dear, options_);
            }
            consider(plan_us_byte, options_);
            consider(plan_bytescheduler, options_);
            Options whole = options_;
            whole.partition_bytes = 0;
            whole.grain = std::max<std::uint64_t>(whole.grain, whole.least_piece);
            consider(plan_bytescheduler, whole);
        }
    }

private:
    void consider(Plan (*make)(const Profile&, const Fabric&, const Options&),
                  const Options& with) {
        choice_.offer(make(profile_, fabric_, with));
        if (split_) {
            choice_.offer(spread(make(profile_, one_, with), profile_, fabric_, with, cut_));
        }
    }

    void fewer() {
        for (const auto& links : fewer_links(profile_, fabric_)) {
            const Fabric few = only(links, fabric_);
            if (choice_.hopeless(lower_bound(profile_, few, options_.barrier, 0, 1), 0)) {
                continue;
            }
            choice_.offer(renumbered(plan_edf(profile_, few, options_), links, profile_, fabric_));
            if (links.size() > 1 && options_.allow_split) {
                Shares cut(few, options_);
                // First ready, first sent: its order needs no cost, any one link will do.
                Fabric any = few;
                any.links.resize(1);
                choice_.offer(renumbered(
                    spread(plan_wfbp(profile_, any, options_), profile_, few, options_, cut), links,
                    profile_, fabric_));
            }
        }
    }

    const Profile& profile_;
    const Fabric& fabric_;
    const Options& options_;
    Choice& choice_;
    Shares& cut_;
    const bool split_;
    const Fabric one_;
};

struct Draft {
    double least;
    bool parts;
    Plan plan;
};

// Those that can be fastest first. `nothing`: so little is exposed that compute never waits.
void offer(std::vector<Draft> drafts, double nothing, Choice& choice) {
    std::stable_sort(drafts.begin(), drafts.end(),
                     [](const Draft& a, const Draft& b) { return a.least < b.least; });
    std::uint32_t enough[] = {UINT32_MAX, UINT32_MAX};  // delay at which compute never waits
    for (Draft& draft : drafts) {
        const std::uint32_t delay = draft.plan.predicted.max_delay;
        std::uint32_t& least = enough[draft.parts ? 1 : 0];
        if (delay < least && choice.offer(std::move(draft.plan)) <= nothing) {
            least = delay;  // more cannot help
        }
    }
}

// An iteration of a plan whose updates each sum so many iterations counts for this much at most.
double most_worth(const Options& options, double merge) {
    switch (options.objective) {
        case Objective::IterationTime:
            return 1;
        case Objective::UpdateTime:
            return 1 / merge;
        case Objective::Progress:
            return merged_worth(merge, options.noise_scale) / merge;
    }
    return 1;
}

// No plan within the options needs fewer seconds that count. Where progress counts: an update of k
// iterations is worth less than k, so least is gained by merging no more than the links need.
double least_that_counts(const Profile& profile, const Fabric& fabric, const Options& options,
                         double least) {
    if (options.objective != Objective::Progress || options.max_merge <= 1) {
        return least;
    }
    const double full = static_cast<double>(profile.bytes()) / fabric.best_rate();
    const double merge =
        std::clamp(full / profile.compute(), 1.0, static_cast<double>(options.max_merge));
    return std::max(least, std::max(profile.compute(), full / merge) /
                               most_worth(options, std::isfinite(merge) ? merge : 1.0));
}

// Late and merged generations, those that can be fastest first, the less stale of two alike.
void offer_generations(const Profile& profile, const Fabric& fabric, const Options& options,
                       Choice& choice, Shares& cut) {
    const bool split = fabric.links.size() > 1 && options.allow_split;
    const std::uint32_t most_late = std::min(options.max_delay, 8U);
    struct Kind {
        double least;
        std::uint32_t merge;
    };
    std::vector<Kind> kinds;
    for (std::uint32_t merge = most_late > 0 ? 1 : 2;
         merge <= std::min({options.max_merge, options.max_period, 8U}); ++merge) {
        const double reach = lower_bound(profile, fabric, Barrier::Update, most_late, merge);
        kinds.push_back({reach / most_worth(options, merge), merge});
    }
    std::stable_sort(kinds.begin(), kinds.end(),
                     [](const Kind& a, const Kind& b) { return a.least < b.least; });
    const std::vector<std::uint32_t> whole = largest_first(profile, fabric);
    for (const Kind& kind : kinds) {
        // Merging that is not late still has the updates in between for nothing.
        const std::uint32_t first = kind.merge == 1 ? 1 : 0;
        if (choice.hopeless(kind.least, kind.merge - 1 + first)) {
            continue;
        }
        std::vector<Draft> drafts;
        for (std::uint32_t delay = first; delay <= most_late; ++delay) {
            for (const bool parts : {false, true}) {
                if (!parts || split) {
                    Plan plan = generations(profile, fabric, options, {1, kind.merge}, delay,
                                            parts ? std::vector<std::uint32_t>() : whole, cut);
                    const double least = plan_floor(plan, profile, fabric);
                    drafts.push_back({least, parts, std::move(plan)});
                }
            }
        }
        offer(std::move(drafts), 1e-9 * profile.compute(), choice);
    }
}

// DeFT's own: as many updates as the links carry, one in a fraction of iterations. Those with the
// most first: fewer iterations in each are less stale.
void offer_fractions(const Profile& profile, const Fabric& fabric, const Options& options,
                     Choice& choice, Shares& cut) {
    constexpr std::uint32_t kLongest = 6;  // iterations until it repeats
    const bool split = fabric.links.size() > 1 && options.allow_split;
    const std::vector<std::uint32_t> whole = largest_first(profile, fabric);
    std::vector<Frequency> frequencies;
    for (std::uint32_t n = 3; n <= std::min(kLongest, options.max_period); ++n) {
        for (std::uint32_t updates = 2; updates < n; ++updates) {
            const std::uint32_t most = (n + updates - 1) / updates;
            if (std::gcd(updates, n) == 1 && most <= options.max_merge) {
                frequencies.push_back({updates, n});
            }
        }
    }
    std::sort(frequencies.begin(), frequencies.end(), [](const Frequency& a, const Frequency& b) {
        return a.updates * b.iterations > b.updates * a.iterations;
    });
    for (const Frequency& frequency : frequencies) {
        for (std::uint32_t delay = 1; delay <= std::min(options.max_delay, 8U); ++delay) {
            for (const bool parts : {false, true}) {
                if (!parts || split) {
                    choice.offer(generations(profile, fabric, options, frequency, delay,
                                             parts ? std::vector<std::uint32_t>() : whole, cut));
                }
            }
        }
    }
}

// The fewest late bytes at the time of everything late; where progress counts, less late ones too.
void offer_mixed_ages(const Profile& profile, const Fabric& fabric, const Options& options,
                      Choice& choice, Shares& cut) {
    constexpr std::size_t kTried = 24;  // numbers of fresh buckets
    const bool split = fabric.links.size() > 1 && options.allow_split;
    const std::vector<std::uint32_t> spread_whole = largest_first(profile, fabric);
    const double rate = fabric.best_rate();
    const double total = static_cast<double>(profile.bytes());
    for (const bool parts : {false, true}) {
        if (parts && !split) {
            continue;
        }
        const auto whole = parts ? std::vector<std::uint32_t>() : spread_whole;
        const auto offer = [&](std::uint64_t fresh) {
            choice.offer(mixed_ages(profile, fabric, options, fresh, whole, cut));
        };
        Plan late = mixed_ages(profile, fabric, options, 0, whole, cut);
        evaluate(late, profile, fabric);
        const double seconds = late.predicted.iteration * (1 + 1e-5);
        const std::uint64_t least = most_fresh(profile, fabric, options, seconds, whole, cut);
        offer(least);
        if (options.objective != Objective::Progress) {
            continue;
        }
        Options exactly = options;
        exactly.slack = 0;
        const std::uint64_t fits = most_fresh(profile, fabric, exactly, seconds, whole, cut);
        std::uint64_t fresh = 0;
        for (std::size_t i = 0; i + 1 < profile.size(); ++i) {
            fresh += profile.buckets[i].bytes;
            const bool within_slack = fresh > least && fresh <= fits;
            const bool tried =
                !within_slack && (profile.size() <= kTried || i % (profile.size() / kTried) == 0);
            const double in_time = static_cast<double>(fresh) / total;
            const double worth = in_time + (1 - in_time) * late_worth(1, options.age_price);
            if (tried && !choice.hopeless(mixed_ages_floor(profile, rate, fresh) / worth, 0)) {
                offer(fresh);
            }
        }
    }
}

// Whole buckets may be faster than pieces that fit their windows, where start-ups count.
void offer_deft(const Profile& profile, const Fabric& fabric, const Options& options,
                Choice& choice) {
    Plan plan = plan_deft(profile, fabric, options);
    const bool cut = plan.transfers.size() > profile.size() * plan.period;
    choice.offer(std::move(plan));
    if (cut) {
        Options whole = options;
        whole.allow_split = false;
        choice.offer(plan_deft(profile, fabric, whole));
    }
}

}  // namespace

Plan plan_best(const Profile& profile, const Fabric& fabric, const Options& options) {
    const Plan as_is = plan_none(profile, fabric, options);
    Choice choice(profile, fabric, options, as_is);
    Options drafts = options;
    drafts.predict = false;
    Shares cut(fabric, options);
    const double least = lower_bound(profile, fabric, options);
    const double counts = least_that_counts(profile, fabric, options, least);
    const double same_numbers = lower_bound(profile, fabric, options.barrier, 0, 1);
    Synchronous synchronous(profile, fabric, drafts, choice, cut);
    // First what can be fastest: the rest falls by its floors. Ties go to what changes no numbers.
    if (least * (1 + 1e-4) < same_numbers) {
        offer_generations(profile, fabric, drafts, choice, cut);
        synchronous.offer_all();
    } else {
        synchronous.offer_all();
        if (!choice.settled(counts)) {
            offer_generations(profile, fabric, drafts, choice, cut);
        }
    }
    // Where progress counts, an equally fast plan may still have more updates or less late bytes.
    const auto open = [&] {
        const Prediction& p = choice.best().predicted;
        const bool ties = options.objective == Objective::Progress && (p.late > 0 || p.updates < 1);
        return ties || !choice.settled(counts);
    };
    if (options.max_delay > 0 && options.max_merge > 1 && choice.best().predicted.updates < 1) {
        offer_fractions(profile, fabric, drafts, choice, cut);
    }
    const bool mixed =
        choice.best().predicted.late > 0 || (options.objective == Objective::Progress && open());
    if (options.mixed_ages && options.max_delay > 0 && mixed) {
        offer_mixed_ages(profile, fabric, drafts, choice, cut);
    }
    // COVAP's own interval may not be the fastest: a wider cap must not lose what a narrower gains.
    const std::uint32_t intervals = options.complete_generations ? 1 : options.max_merge;
    for (std::uint32_t k = 2; k <= std::min(intervals, 8U) && open(); ++k) {
        drafts.covap_interval = k;
        choice.offer(plan_covap(profile, fabric, drafts));
    }
    drafts.covap_interval = options.covap_interval;
    // DeFT's knapsacks fall differently under other caps: wider ones must not lose what narrower
    // ones gain.
    constexpr std::uint32_t kCaps = 8;  // of those further down, so many
    const std::uint32_t both = std::min(options.max_delay, options.max_merge);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> caps = {
        {options.max_delay, options.max_merge}, {both, both}, {1, options.max_merge}};
    for (std::uint32_t k = std::min(both, kCaps + 1); k-- > 1;) {
        caps.emplace_back(k, k);
    }
    for (auto at = caps.begin(); at != caps.end() && open() && options.max_delay > 0; ++at) {
        if (std::find(caps.begin(), at, *at) == at) {
            std::tie(drafts.max_delay, drafts.max_merge) = *at;
            offer_deft(profile, fabric, drafts, choice);
        }
    }
    Plan plan = std::move(choice.best());
    if (choice.seconds(plan) >= choice.seconds(as_is) * (1 - options.noise)) {
        plan = as_is;
    }
    plan.origin = plan.policy;
    plan.policy = "best";
    plan.predicted.bound = least;
    plan.predicted.gap = gap_to(least, plan.predicted.iteration);
    return plan;
}

}  // namespace deft::planner
