// SPDX-License-Identifier: Apache-2.0
// `deft advise`: bounds and a verdict for jobs that were observed or traced.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "planner/adviser.h"
#include "planner/policies/policy.h"
#include "tools/planner/commands.h"
#include "tools/planner/curve.h"
#include "tools/planner/fields.h"
#include "tools/planner/profile_reader.h"
#include "tools/planner/validity.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

using planner::Advice;
using planner::Estimate;

nlohmann::json to_json(const Estimate& e) {
    return {{"low", e.low}, {"middle", e.middle}, {"high", e.high}};
}

nlohmann::json to_json(const planner::BenefitPoint& point) {
    return {{"ratio", point.ratio},
            {"no_overlap_ms", point.no_overlap * 1e3},
            {"as_is_ms", point.as_is * 1e3},
            {"striped_ms", point.striped * 1e3},
            {"layered_ms", point.layered * 1e3},
            {"late_ms", point.late * 1e3},
            {"merged_ms", point.merged * 1e3},
            {"bound_ms", point.bound * 1e3},
            {"late_progress", point.late_progress},
            {"merged_progress", point.merged_progress},
            {"compute_ms", point.compute * 1e3}};
}

// Buckets times links up to which --json has the curve unasked: it takes about a second then.
constexpr std::size_t kQuickCurve = 512;

nlohmann::json to_json(const planner::Benefit& benefit) {
    nlohmann::json points = nlohmann::json::array();
    for (const planner::BenefitPoint& point : benefit.curve) {
        points.push_back(to_json(point));
    }
    return {{"here", to_json(benefit.here)},
            {"points", points},
            {"bounds",
             {{"three_resources", benefit.bounds.three_resources},
              {"order", benefit.bounds.order},
              {"order_over_overlap", benefit.bounds.over_overlap}}}};
}

std::string row(const char* name, const Estimate& gain, double bound) {
    return fmt::format("  {:<44} {:>9.3f} ms {:>7.2f}x  ({:.2f}-{:.2f})\n", name, bound * 1e3,
                       gain.middle, gain.low, gain.high);
}

// One input, and what is to be said of it.
struct Advised {
    std::string input;
    std::int64_t rank = -1;  // of its file; below 0: not said there
    planner::Profile profile;
    planner::Fabric fabric;
    Advice advice;
    planner::Benefit benefit;
    planner::Prediction best;  // of the best plan; its verdict holds for the job as it was timed
};

// No plan is for use that is no faster than what the job was timed at, and none next to "do
// nothing" without a word.
void reconcile(Advised& one, double noise) {
    const bool timed = one.profile.iteration.measured();
    if (timed && one.best.iteration >= one.advice.measured * one.best.progress * (1 - noise)) {
        one.best.verdict = planner::Verdict::Keep;
    }
    if (timed) {
        one.best.baseline = one.advice.measured;
    }
    if (one.advice.nothing_to_gain && one.best.verdict != planner::Verdict::Keep) {
        one.advice.verdict =
            one.best.updates < 1 - 1e-9
                ? "nothing to gain with an update in every iteration: the links are hidden under "
                  "compute; only fewer updates are faster"
                : "nothing to gain as the job's transfers were timed; the links given promise more";
    }
}

Advised advise_on(const PlannerOptions& options, const std::string& input) {
    Advised one;
    one.input = input;
    one.profile = options.read(input, &one.rank);
    if (!options.links.empty()) {
        one.fabric = options.fabric(options.ranks_for(one.profile));
    } else {
        planner::Link link = planner::link_from_transfers(one.profile);
        if (link.name.empty()) {
            throw InputError(input + ": buckets: no transfer was timed; name the links (--links)");
        }
        one.fabric.links.push_back(std::move(link));
    }
    const planner::Options with = options.options();
    one.advice = advise(one.profile, one.fabric, with);
    // Some thirty searches for plans: many buckets over many links take minutes.
    const bool quickly = one.profile.size() * one.fabric.links.size() <= kQuickCurve;
    if (options.curve || (options.json && quickly)) {
        one.benefit = benefit_of(one.profile, one.fabric, with);
    } else {
        one.benefit.here = one.advice.here;
    }
    one.best = make_plan("best", one.profile, one.fabric, with).predicted;
    reconcile(one, with.noise);
    return one;
}

// Links that are used where nobody measured them, by name.
nlohmann::json beyond_of(const Advised& one) {
    nlohmann::json links = nlohmann::json::object();
    const std::vector<MessageSizes> messages = messages_of(one.profile, one.fabric);
    for (std::size_t i = 0; i < one.fabric.links.size(); ++i) {
        const std::string beyond = beyond_of(one.fabric.links[i], messages[i]);
        if (!beyond.empty()) {
            links[one.fabric.links[i].name] = beyond;
        }
    }
    return links;
}

nlohmann::json to_json(const Advised& one) {
    const Advice& advice = one.advice;
    return {
        {"beyond", beyond_of(one)},
        {"input", one.input},
        {"verdict", advice.verdict},
        {"nothing_to_gain", advice.nothing_to_gain},
        {"measured_ms", advice.measured * 1e3},
        {"compute_ms", advice.compute * 1e3},
        {"communication_ms", advice.communication * 1e3},
        {"coverage_rate", to_json(advice.coverage)},
        {"striped",
         {{"bound_ms", advice.bound_striped * 1e3}, {"gain", to_json(advice.gain_striped)}}},
        {"curve", to_json(one.benefit)},
        {"order", {{"bound_ms", advice.bound_order * 1e3}, {"gain", to_json(advice.gain_order)}}},
        {"links", {{"bound_ms", advice.bound_links * 1e3}, {"gain", to_json(advice.gain_links)}}},
        {"delay", {{"bound_ms", advice.bound_delay * 1e3}, {"gain", to_json(advice.gain_delay)}}},
        {"merge", {{"bound_ms", advice.bound_merge * 1e3}, {"gain", to_json(advice.gain_merge)}}},
        {"order_cap", advice.order_cap},
        {"overhead_ms", advice.overhead * 1e3},
        {"best_plan_ms", one.best.iteration * 1e3},
        {"best_plan_verdict", to_string(one.best.verdict)},
        {"best_plan_updates_per_iteration", one.best.updates},
        {"best_plan_late", one.best.late},
        {"best_plan_progress", one.best.progress},
        {"notes", advice.notes}};
}

// Ranks of one job that are told the same: the same sums, and a verdict that differs in its
// figures at most.
bool agree(const Advised& a, const Advised& b) {
    const auto kind = [](const std::string& verdict) {
        return verdict.substr(0, verdict.find_first_of("0123456789"));
    };
    const auto same_bytes = [](const planner::Bucket& x, const planner::Bucket& y) {
        return x.bytes == y.bytes;
    };
    return a.rank >= 0 && b.rank >= 0 && a.profile.ranks == b.profile.ranks &&
           std::equal(a.profile.buckets.begin(), a.profile.buckets.end(), b.profile.buckets.begin(),
                      b.profile.buckets.end(), same_bytes) &&
           kind(a.advice.verdict) == kind(b.advice.verdict) && a.best.verdict == b.best.verdict;
}

// Ascending in rank, no rank twice: a second file of a rank is of another job, or the same again.
using Group = std::vector<Advised>;

void add_to(std::vector<Group>& groups, Advised one) {
    for (Group& group : groups) {
        const bool twice = std::any_of(group.begin(), group.end(), [&](const Advised& other) {
            return other.rank == one.rank;
        });
        if (!twice && agree(group.front(), one)) {
            const auto behind = std::upper_bound(
                group.begin(), group.end(), one,
                [](const Advised& a, const Advised& b) { return a.rank < b.rank; });
            group.insert(behind, std::move(one));
            return;
        }
    }
    groups.push_back({std::move(one)});
}

std::string body(const Advised& one, const planner::Options& with) {
    const Advice& advice = one.advice;
    const planner::Profile& profile = one.profile;
    std::string text = fmt::format(
        "  iteration {:.3f} ms{}; compute {:.3f} ms; all-reduces {:.3f} ms; coverage "
        "rate {:.2f} ({:.2f}-{:.2f})\n",
        advice.measured * 1e3,
        profile.iteration.measured() ? fmt::format(" ({} measured)", profile.iteration.n)
                                     : " (predicted)",
        advice.compute * 1e3, advice.communication * 1e3, advice.coverage.middle,
        advice.coverage.low, advice.coverage.high);
    text +=
        "  no plan can be faster than                        bound at most  (10th-90th "
        "percentile)\n";
    text +=
        row("an unmodified job over all links given", advice.gain_striped, advice.bound_striped);
    text += row("best order, same links, layers wait*", advice.gain_order, advice.bound_order);
    text += row("best order, all links given, layers wait*", advice.gain_links, advice.bound_links);
    text += row("updates one iteration late", advice.gain_delay, advice.bound_delay);
    text += row(fmt::format("{} iterations per update, late", with.max_merge).c_str(),
                advice.gain_merge, advice.bound_merge);
    text += "  * where each layer waits for its own gradient only (DEFT_LAYERWISE=auto)\n";
    text +=
        fmt::format("  ordering never adds more than {:.2f}x to plain overlap\n", advice.order_cap);
    const auto gains = [&](double seconds, double progress) {
        const double gain = seconds > 0 ? advice.here.as_is / seconds : 1;
        return fmt::format("{:.2f}x", gain) +
               (progress < 1 - 1e-9 ? fmt::format(" ({:.2f}x to the same loss)", gain * progress)
                                    : "");
    };
    text += fmt::format(
        "  plans of the modes, each or one before it: all links {}, layers wait {}, one iteration "
        "late {}, {} iterations per update {}\n",
        gains(advice.here.striped, 1), gains(advice.here.layered, 1),
        gains(advice.here.late, advice.here.late_progress), with.max_merge,
        gains(advice.here.merged, advice.here.merged_progress));
    text += fmt::format(
        "  best plan within delay {}, merge {}: {:.3f} ms, {:.3g} updates an iteration, {:.0f} % "
        "late ({})\n",
        with.max_delay, with.max_merge, one.best.iteration * 1e3, one.best.updates,
        100 * one.best.late, verdict_text(one.best));
    text +=
        "  bounds leave start-ups out and are of the iteration's time; late and merged gradients "
        "need more iterations\n";
    text += beyond_text(one.fabric, messages_of(one.profile, one.fabric), "  ");
    for (const std::string& note : advice.notes) {
        text += "  note: " + note + "\n";
    }
    for (std::size_t i = 0; i < profile.size() && profile.size() <= 32; ++i) {
        const planner::Bucket& b = profile.buckets[i];
        text += fmt::format("  bucket {:>3}: {:>12} bytes, ready {:>9.3f} ms", i, b.bytes,
                            b.ready * 1e3);
        text += b.transfer.measured() ? fmt::format(", all-reduce {:.3f} ms ({:.3f}-{:.3f})\n",
                                                    b.transfer.median * 1e3, b.transfer.p10 * 1e3,
                                                    b.transfer.p90 * 1e3)
                                      : "\n";
    }
    return text;
}

std::vector<const Advised*> by_time(const Group& group) {
    std::vector<const Advised*> sorted;
    for (const Advised& one : group) {
        sorted.push_back(&one);
    }
    std::stable_sort(sorted.begin(), sorted.end(), [](const Advised* a, const Advised* b) {
        return a->advice.measured < b->advice.measured;
    });
    return sorted;
}

const Advised& middle_of(const Group& group) {
    return *by_time(group)[(group.size() - 1) / 2];
}

// One verdict for all ranks of the group: that of the one in the middle by iteration time.
std::string text_of(const Group& group, const planner::Options& with) {
    std::vector<std::int64_t> ranks;
    for (const Advised& one : group) {
        ranks.push_back(one.rank);
    }
    const Advised& middle = middle_of(group);
    if (group.size() == 1) {
        return fmt::format("{}: {}\n", printable(middle.input), middle.advice.verdict) +
               body(middle, with);
    }
    return fmt::format(
               "ranks {}: {}\n  of rank {} ({}), in the middle of {} ranks that agree: {:.3f} to "
               "{:.3f} ms per iteration\n",
               ranges(ranks), middle.advice.verdict, middle.rank, printable(middle.input),
               group.size(), by_time(group).front()->advice.measured * 1e3,
               by_time(group).back()->advice.measured * 1e3) +
           body(middle, with);
}

BenefitPicture picture_of(const Advised& one, const planner::Options& with) {
    return {one.profile.name.empty() ? one.input : one.profile.name, one.benefit.bounds,
            one.benefit.here, one.benefit.curve, static_cast<double>(with.max_merge)};
}

// A curve for each job: of several ranks of one, that of the rank in the middle.
std::string write_curves(const std::vector<Group>& groups, const PlannerOptions& options) {
    std::string text;
    std::vector<BenefitPicture> pictures;
    for (const Group& group : groups) {
        const Advised& one = middle_of(group);
        pictures.push_back(picture_of(one, options.options()));
        const std::string from =
            options.inputs.size() > 1 ? " (" + printable(one.input) + ")" : std::string();
        text += fmt::format("{}{}:\n", printable(pictures.back().title), from) +
                benefit_table(pictures.back());
        pictures.back().title += from;
    }
    if (!options.svg.empty()) {
        write_file(options.svg, benefit_svg(pictures));
    }
    return text;
}

}  // namespace

int advise_command(const PlannerOptions& options) {
    nlohmann::json all = nlohmann::json::array();
    std::vector<Group> groups;
    for (const std::string& input : options.inputs) {
        Advised one = advise_on(options, input);
        if (options.json) {
            all.push_back(to_json(one));
        }
        add_to(groups, std::move(one));
    }
    const std::string curves = options.curve ? write_curves(groups, options) : "";
    if (options.json) {
        // Names of files need not be UTF-8.
        return print(all.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    }
    std::string text;
    for (const Group& group : groups) {
        text += text_of(group, options.options());
    }
    return print(text + curves);
}

}  // namespace deft::tools
