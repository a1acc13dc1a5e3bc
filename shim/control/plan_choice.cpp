// SPDX-License-Identifier: Apache-2.0
#include "shim/control/plan_choice.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "base/log.h"
#include "planner/adviser.h"
#include "planner/model/progress.h"
#include "planner/policies/mixed_ages.h"
#include "planner/policies/policy.h"
#include "planner/policies/spreading.h"
#include "planner/simulator/evaluate.h"

namespace deft::director {
namespace {

using planner::Fabric;
using planner::Options;
using planner::Plan;
using planner::Profile;

// Merging, or being late, must come to the same loss sooner by this much to be worth it.
constexpr double kClearly = 0.95;
// More pieces must gain so much.
constexpr double kFiner = 0.005;
// Of what may be fresh: measured times vary.
constexpr double kSlack = 0.1;
// Of the windows that DeFT's queues fill, and of the links where updates come in a fraction of
// iterations, for the same reason: where links and compute are both busy all the time, each waits
// for whatever is late in the other.
constexpr double kBusySlack = 0.05;
// Where pieces are so large that this would cost more of the updates, the windows are filled.
constexpr double kFewerUpdates = 0.1;
// What a lane took while the job's transfers went on, those of two communicators and of other new
// lanes, against what it takes alone, at least.
constexpr double kBeside = 0.25;

std::string line(const char* format, double a, double b, double c) {
    char text[256];
    std::snprintf(text, sizeof(text), format, a, b, c);
    return text;
}

bool updates_in_a_fraction(const Plan& plan) {
    const double merged = 1 / plan.predicted.updates;
    return std::abs(merged - static_cast<double>(std::llround(merged))) > 1e-9;
}

// Measured links have no curves of several algorithms.
Fabric slower(Fabric fabric, double rate) {
    for (planner::Link& link : fabric.links) {
        link.cost.alpha /= rate;
        link.cost.beta /= rate;
        for (planner::CostPoint& point : link.cost.points) {
            point.seconds /= rate;
        }
    }
    return fabric;
}

// The best plan where sums may be merged and late. A fraction of updates that the links can just
// carry takes longer than predicted: it is chosen as if they were slower.
Plan best_combined(const Profile& profile, const Fabric& fabric, const Options& options) {
    Plan plan = planner::make_plan("best", profile, fabric, options);
    if (!updates_in_a_fraction(plan)) {
        return plan;
    }
    Plan careful = planner::make_plan("best", profile, slower(fabric, 1 - kBusySlack), options);
    if (careful.predicted.verdict != planner::Verdict::Use) {
        return plan;
    }
    const planner::Prediction thought = plan.predicted;
    planner::evaluate(careful, profile, fabric);
    careful.predicted.baseline = thought.baseline;
    careful.predicted.bound = thought.bound;
    careful.predicted.gap = planner::gap_to(thought.bound, careful.predicted.iteration);
    careful.predicted.verdict = thought.verdict;
    return careful;
}

// The best plan. Sums that are merged and late as well cost more accuracy than either alone, so one
// of the two is chosen; that with an update every iteration unless merging is clearly better.
Plan best_within(const Profile& profile, const Fabric& fabric, const Options& options,
                 bool combined) {
    if (options.max_delay == 0 || options.max_merge <= 1) {
        return planner::make_plan("best", profile, fabric, options);
    }
    if (combined) {
        return best_combined(profile, fabric, options);
    }
    Options one = options;
    one.max_merge = 1;
    Plan late = planner::make_plan("best", profile, fabric, one);
    one = options;
    one.max_delay = 0;
    Plan merged = planner::make_plan("best", profile, fabric, one);
    return seconds_that_count(merged, options) < kClearly * seconds_that_count(late, options)
               ? merged
               : late;
}

// The same where nothing is known yet of which bytes backward ends with. Where a plan that delays
// only these would be worth it, everything late is carried out for a while, and shows which they
// are (PlanReview::look_again); what that costs is not counted.
Plan best_by_guess(const Profile& profile, const Fabric& fabric, const Options& options,
                   bool combined) {
    Plan plan = best_within(profile, fabric, options, combined);
    if (options.max_delay == 0 || options.mixed_ages) {
        return plan;
    }
    Options promised = options;
    promised.mixed_ages = true;
    const Plan tail = best_within(profile, fabric, promised, combined);
    if (!tail.predicted.mixed_ages() || tail.predicted.verdict != planner::Verdict::Use) {
        return plan;
    }
    plan = planner::plan_generations(profile, fabric, options, 1, 1);
    plan.predicted.baseline = tail.predicted.baseline;
    plan.predicted.verdict = planner::Verdict::Use;
    return plan;
}

bool all_late(const Plan& plan) {
    return std::all_of(plan.deliveries.begin(), plan.deliveries.end(),
                       [](const planner::Delivery& delivery) { return delivery.delay() > 0; });
}

// Several networks. When a hook returns, the stream of the call waits for what the call delivers,
// and the calls of a job share a stream: whole buckets on different networks would wait for each
// other unless all are late. So every transfer is cut over all networks.
Plan best_over_lanes(const Profile& profile, const Fabric& fabric, const Options& options,
                     bool combined) {
    Plan best = planner::plan_generations(profile, fabric, options, 1, 0);
    const auto offer = [&](Plan plan) {
        if (seconds_that_count(plan, options) < kClearly * seconds_that_count(best, options)) {
            best = std::move(plan);
        }
    };
    for (std::uint32_t delay = 1; delay <= options.max_delay; ++delay) {
        offer(planner::plan_generations(profile, fabric, options, 1, delay));
    }
    if (options.max_delay > 0) {
        Options unmerged = options;
        unmerged.max_merge = combined ? options.max_merge : 1;
        Plan apart = planner::make_plan("best", profile, fabric, unmerged);
        if (all_late(apart)) {
            offer(std::move(apart));
        }
    }
    for (std::uint32_t merge = 2; merge <= options.max_merge; ++merge) {
        for (std::uint32_t delay = 0; delay <= (combined ? options.max_delay : 0); ++delay) {
            offer(planner::plan_generations(profile, fabric, options, merge, delay));
        }
    }
    return best;
}

// The job's own network: as fast as its transfers were. They may all have had one size, which tells
// nothing of the parts of one; how an all-reduce starts is known from the lane.
planner::CostCurve own_cost(const Profile& profile, const planner::CostCurve& lane) {
    double least = INFINITY;
    for (const planner::Bucket& bucket : profile.buckets) {
        if (bucket.transfer.measured()) {
            least = std::min(least, bucket.transfer.median);
        }
    }
    planner::CostCurve line;
    line.alpha = std::min(lane.alpha, least / 2);
    double seconds = 0;
    double bytes = 0;
    for (const planner::Bucket& bucket : profile.buckets) {
        if (bucket.transfer.measured()) {
            seconds += bucket.transfer.median - line.alpha;
            bytes += static_cast<double>(bucket.bytes);
        }
    }
    // The lane may have fewer channels than the job's communicator; it was measured beside traffic.
    line.beta = std::max(seconds / bytes, kBeside * lane.beta);
    return line;
}

// The job as it is uses the first network alone.
void judge(Plan& plan, const Profile& profile, const Fabric& fabric, const Options& options) {
    Fabric own = fabric;
    own.links.resize(1);
    planner::Prediction& p = plan.predicted;
    p.baseline = planner::plan_none(profile, own, options).predicted.iteration;
    p.verdict = seconds_that_count(plan, options) < p.baseline * (1 - options.noise)
                    ? planner::Verdict::Use
                    : planner::Verdict::Keep;
}

// Partitions as ByteScheduler tunes them, from its documentation's down to where a start counts. Of
// a plan that is made ahead, the credit is only how late the next piece is decided on: as late as
// can be. Pieces wait on the lane in any case.
Plan bytescheduler(const Profile& profile, const Fabric& fabric, Options options, bool cuts) {
    options.credit_bytes = 1;
    options.partition_bytes = cuts ? options.partition_bytes : profile.bytes();
    Plan best = planner::make_plan("bytescheduler", profile, fabric, options);
    while (cuts && (options.partition_bytes /= 2) >= kLeastPart) {
        Plan plan = planner::make_plan("bytescheduler", profile, fabric, options);
        if (plan.predicted.iteration < best.predicted.iteration * (1 - kFiner)) {
            best = std::move(plan);
        }
    }
    return best;
}

// For layers that wait for their own: as the operator names it, or the fastest of all. An order of
// whole sums keeps the bits of any number of ranks.
Plan layer_plan(const Profile& profile, const Fabric& fabric, Options options,
                const Settings& settings) {
    options.barrier = planner::Barrier::Layer;
    // DeAR's is taken where it is named. In each call that leaves something to a later one the
    // ranks ask each other by one byte (shim/executor/executor.h); DeAR's calls all do, but the
    // last, and with that no job is known that it makes faster than ByteScheduler's.
    options.halves = false;
    options.least_piece = kLeastPart;
    options.allow_split = settings.cuts;
    if (!settings.cuts) {
        options.partition_bytes = options.grain = profile.bytes();
    }
    if (settings.policy == "bytescheduler") {
        return bytescheduler(profile, fabric, options, settings.cuts);
    }
    if (settings.policy == "us-byte" || settings.policy == "dear") {
        return planner::make_plan(settings.policy, profile, fabric, options);
    }
    Plan best = planner::make_plan("best", profile, fabric, options);
    Plan tuned = bytescheduler(profile, fabric, options, settings.cuts);
    const bool finer = tuned.predicted.iteration < best.predicted.iteration * (1 - kFiner);
    // Carried out all the same, it shows how long backward takes.
    const bool as_it_is = best.barrier == planner::Barrier::Update;
    return finer || (as_it_is && (settings.trial || !settings.policy.empty())) ? tuned : best;
}

// DeFT's own two queues. They send whole generations, all of them late: no network waits for
// another in a hook.
Plan queues(const Profile& profile, const Fabric& fabric, Options options,
            const Settings& settings) {
    options.max_delay = settings.forced_delay;
    options.max_merge = settings.forced_merge;
    options.objective = planner::Objective::IterationTime;
    Plan filled = planner::make_plan("deft", profile, fabric, options);
    options.capacity_factor = 1 - kBusySlack;
    Plan slack = planner::make_plan("deft", profile, fabric, options);
    const double least = (1 - kFewerUpdates) * filled.predicted.updates;
    return slack.predicted.updates < least ? filled : slack;
}

Plan covap(const Profile& profile, const Fabric& fabric, const Options& options) {
    if (fabric.links.size() == 1) {
        return planner::make_plan("covap", profile, fabric, options);
    }
    planner::Shares cut(fabric, options);
    return planner::spread(planner::plan_covap(profile, fabric.merged(), options), profile, fabric,
                           options, cut);
}

}  // namespace

Fabric fabric_of(const Profile& profile, const std::vector<planner::Link>& lanes) {
    Fabric fabric;
    fabric.name = "as measured";
    fabric.links.push_back(planner::link_from_transfers(profile));
    if (fabric.links.front().name.empty()) {
        throw std::invalid_argument("no transfer has been timed (CUDA events are not available)");
    }
    // The plugin stripes every message over all its links, and a transport of NCCL's own is one
    // link too; only other networks are links apart.
    fabric.striped = lanes.size() < 2;
    if (!fabric.striped) {
        fabric.links.front().cost = own_cost(profile, lanes.front().cost);
        fabric.links.insert(fabric.links.end(), lanes.begin() + 1, lanes.end());
    }
    return fabric;
}

std::size_t lanes_of(const Plan& plan) {
    std::size_t lanes = 1;
    for (const planner::Transfer& transfer : plan.transfers) {
        lanes = std::max<std::size_t>(lanes, transfer.link + 1);
    }
    return lanes;
}

// Of parts of a sum nothing is known from sums. The lane was measured beside the job's transfers,
// and these in the midst of its compute: the faster of the two is nearer to the truth.
Fabric fabric_of(const Profile& profile, const std::vector<planner::Link>& lanes,
                 const Settings& settings) {
    Fabric fabric = fabric_of(profile, lanes);
    if (settings.layers && fabric.striped && settings.lane_per_byte > 0) {
        planner::CostCurve lane;
        lane.alpha = settings.lane_start;
        planner::CostCurve own = own_cost(profile, lane);
        own.beta = std::min(own.beta, settings.lane_per_byte);
        fabric.links.front().cost = own;
    }
    return fabric;
}

// COVAP's error feedback is not priced, and who asks for that mode asks for its merging.
Options prices_of(const Settings& settings) {
    Options options;
    options.objective = settings.mode == ShimMode::Covap ? planner::Objective::IterationTime
                                                         : planner::Objective::Progress;
    options.noise_scale = settings.noise_scale;
    options.age_price = settings.age_price;
    return options;
}

double predict(Plan plan, const Profile& profile, const std::vector<planner::Link>& lanes) {
    return predict_over(fabric_of(profile, lanes), std::move(plan), profile);
}

double predict_over(const Fabric& fabric, Plan plan, const Profile& profile) {
    planner::evaluate(plan, profile, fabric);
    return plan.predicted.iteration;
}

Plan choose_plan(const Profile& profile, const std::vector<planner::Link>& lanes,
                 const Settings& settings, std::string& note) {
    const Fabric fabric = fabric_of(profile, lanes, settings);
    Options options = prices_of(settings);
    options.max_delay = settings.max_delay;
    options.max_merge = settings.max_merge;
    options.allow_fusion = false;  // every call of the job is a transfer of its own
    options.complete_generations = !settings.turns;
    // Over several networks what is late would wait in the hook for what is fresh.
    options.mixed_ages = settings.mixed_ages && fabric.striped;
    options.slack = kSlack;
    if (!fabric.striped) {
        options.least_piece = kLeastPart;
    }
    Plan plan;
    if (settings.forced_merge > 0) {
        options.covap_interval = settings.forced_merge;
        options.max_merge = std::max(options.max_merge, settings.forced_merge);
        const bool turns =
            settings.turns && settings.forced_merge > 1 && settings.forced_delay == 0;
        plan = settings.mode == ShimMode::Covap || turns ? covap(profile, fabric, options)
               : settings.forced_queues ? queues(profile, fabric, options, settings)
               : settings.forced_tail
                   ? planner::least_late(profile, fabric, options)
                   : planner::plan_generations(profile, fabric, options, settings.forced_merge,
                                               settings.forced_delay);
        note = line("DEFT_PLAN asks for it: %.2f ms predicted, %.2f ms now, bound %.2f ms",
                    plan.predicted.iteration * 1e3, profile.iteration.median * 1e3,
                    plan.predicted.bound * 1e3);
        plan.predicted.verdict = planner::Verdict::Use;
        plan.predicted.progress = progress_per_iteration(plan, options);
        return plan;
    }
    if (settings.layers && fabric.striped) {
        plan = layer_plan(profile, fabric, options, settings);
        if (settings.trial || !settings.policy.empty()) {
            plan.predicted.verdict = planner::Verdict::Use;
        }
    } else if (settings.mode == ShimMode::Covap) {
        plan = covap(profile, fabric, options);
    } else {
        plan = fabric.striped ? best_by_guess(profile, fabric, options, settings.combined)
                              : best_over_lanes(profile, fabric, options, settings.combined);
    }
    if (!fabric.striped) {
        judge(plan, profile, fabric, options);
    }
    plan.predicted.progress = progress_per_iteration(plan, options);
    note = plan.name() + line(": %.2f ms predicted, %.2f ms as it is, bound %.2f ms",
                              plan.predicted.iteration * 1e3, plan.predicted.baseline * 1e3,
                              plan.predicted.bound * 1e3);
    if (plan.predicted.late_or_merged()) {
        note += line("; %.3g updates and %.3g synchronous ones' worth an iteration",
                     plan.predicted.updates, plan.predicted.progress, 0);
    }
    if (plan.predicted.late > 0 && plan.predicted.late < 1) {
        note += line("; %.0f %% of the bytes are late", 100 * plan.predicted.late, 0, 0);
    }
    if (settings.unmeasured) {
        DEFT_WARN_ONCE("mode deft: %s", settings.limited);
    } else if (*settings.limited != '\0') {
        note += std::string("; ") + settings.limited;
    }
    return plan;
}

}  // namespace deft::director
