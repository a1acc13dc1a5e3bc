// SPDX-License-Identifier: Apache-2.0
// The report of a run as a page: figures that matter first.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "tools/html_page.h"
#include "tools/report.h"
#include "tools/report_gain.h"
#include "tools/report_spread.h"
#include "tools/report_stalls.h"
#include "tools/report_words.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

using html::Bar;
using html::Colour;
using Rows = std::vector<std::vector<std::string>>;

std::string ms(const std::optional<double>& value) {
    return value ? number_text(value) + " ms" : "-";
}

std::string ms(const std::optional<Estimate>& value) {
    if (!value) {
        return "-";
    }
    return value->half > 0 ? fmt::format("{:.2f} ± {:.2f} ms", value->middle, value->half)
                           : fmt::format("{:.2f} ms", value->middle);
}

std::string percent_text(const Estimate& change) {
    const double size = std::abs(change.middle) * 100;
    const std::string less = change.middle < 0 ? "less" : "more";
    return change.half > 0 ? fmt::format("{:.1f} ± {:.1f} % {}", size, change.half * 100, less)
                           : fmt::format("{:.1f} % {}", size, less);
}

// Whether the interval of the change leaves out "no change".
bool sure(const Estimate& change) {
    return change.half > 0 && std::abs(change.middle) > change.half;
}

std::string update_sentence(const PlanGain& gain) {
    const double updates = gain.plan->updates_per_iteration.value_or(1);
    const double progress = gain.plan->progress.value_or(1);
    if (!gain.now || !gain.before) {
        return "";
    }
    std::string text;
    if (updates > 0 && updates < 0.999) {
        text += fmt::format(
            " The plan makes {:.3g} updates an iteration: one update takes {:.2f} ms, and took "
            "{:.2f} ms.",
            updates, gain.now->middle / updates, gain.before->middle);
    }
    if (progress > 0 && progress < 0.999) {
        text += fmt::format(
            " An iteration is worth {:.3g} of one without it, as expected: what {:.2f} ms did "
            "takes "
            "{:.2f} ms now.",
            progress, gain.before->middle, gain.now->middle / progress);
    }
    return text;
}

// The sentence that answers: did it help?
std::string verdict(const RunReport& run, const PlanGain& gain) {
    if (gain.change) {
        return fmt::format(
                   "Under the plan '{}' an iteration takes {}, and took {} before it: {}{}.",
                   gain.plan->policy, ms(gain.now), ms(gain.before), percent_text(*gain.change),
                   gain.change->half <= 0 ? ""
                   : sure(*gain.change)   ? ", which is more than chance"
                                          : ", which may be chance") +
               update_sentence(gain);
    }
    if (gain.plan != nullptr && gain.plan->state == "running") {
        return fmt::format("The plan '{}' is in force; {}.", gain.plan->policy,
                           gain.now ? "an iteration takes " + ms(gain.now) +
                                          ", and nobody knows how long it took before"
                                    : "no iteration under it was timed");
    }
    if (gain.plan != nullptr) {
        return fmt::format("{} (state {}{}).",
                           gain.plan->switched > 0 ? "A plan was in force, and is not any more"
                                                   : "No plan was in force",
                           gain.plan->state,
                           gain.plan->reason.empty() ? "" : ": " + gain.plan->reason);
    }
    const auto coverage =
        spread(run, [](const ObserveFile& file) { return file.coverage_rate.median; }).middle;
    if (!coverage) {
        return "Nothing was planned, and no iteration was timed.";
    }
    return fmt::format(
        "Nothing was planned. Transfers take {:.2f} times as long as computation, so they {}.",
        *coverage, *coverage > 1 ? "cannot hide behind it" : "could hide behind it");
}

std::string cards(const RunReport& run, const PlanGain& gain) {
    const auto middle = [&](Quantiles ObserveFile::*which) {
        return spread(run, [which](const ObserveFile& file) { return (file.*which).median; });
    };
    const Spread time = middle(&ObserveFile::time_ms);
    const Spread coverage = middle(&ObserveFile::coverage_rate);
    double sent = 0;
    double again = 0;
    for (const ObserveFile& file : run.ranks) {
        for (const ObservedLink& link : file.links) {
            sent += static_cast<double>(link.bytes_sent);
            again += static_cast<double>(link.resent_bytes);
        }
    }
    std::vector<html::Card> list;
    if (gain.change) {
        list.push_back({"Change of an iteration",
                        fmt::format("{:+.1f} %", gain.change->middle * 100),
                        fmt::format("± {:.1f}, 95 % confidence", gain.change->half * 100)});
    }
    list.push_back(
        {"Iteration", ms(time.middle),
         time.middle && run.ranks.size() > 1
             ? fmt::format("ranks {} to {}", number_text(time.lowest), number_text(time.highest))
             : "median"});
    list.push_back({"Coverage rate", number_text(coverage.middle), "transfers over computation"});
    list.push_back({"Sent over links", size_text(sent),
                    again > 0 ? size_text(again) + " sent again" : "nothing sent again"});
    if (gain.plan != nullptr) {
        list.push_back(
            {"Guard", fmt::format("{}", gain.plan->guard_decisions),
             gain.plan->state == "fallen" ? "decisions; it has ended the plan" : "decisions"});
    }
    return html::cards(list);
}

Bar time_bar(const std::string& name, const Quantiles& times, double most, Colour colour) {
    Bar bar{name, ms(times.median), {}, 0, 0};
    bar.parts.push_back({0, times.median.value_or(0) / most * 100, colour, bar.value});
    if (times.p10 && times.p90) {
        bar.low = *times.p10 / most * 100;
        bar.high = *times.p90 / most * 100;
        bar.value += fmt::format(" ({:.2f} to {:.2f})", *times.p10, *times.p90);
    }
    return bar;
}

Quantiles alone(const std::optional<double>& value) {
    Quantiles result;
    result.median = value;
    return result;
}

std::string times_section(const RunReport& run, const PlanGain& gain) {
    const ObserveFile* of = &run.ranks.front();
    for (const ObserveFile& file : run.ranks) {
        of = file.rank == gain.rank ? &file : of;
    }
    std::vector<std::tuple<std::string, Quantiles, Colour>> lines;
    if (gain.before) {
        Quantiles before = gain.plan->before;
        before.median = gain.plan->before_ms;
        lines.emplace_back("before the plan", before, Colour::Plain);
    }
    if (of->time_ms.median) {
        lines.emplace_back(gain.now ? "under the plan" : "iteration", of->time_ms,
                           Colour::Transfer);
    }
    if (gain.plan != nullptr && gain.plan->predicted_ms.value_or(0) > 0) {
        lines.emplace_back("predicted", alone(gain.plan->predicted_ms), Colour::Compute);
    }
    if (gain.plan != nullptr && gain.plan->bound_ms.value_or(0) > 0) {
        lines.emplace_back("bound of the prediction", alone(gain.plan->bound_ms), Colour::Bound);
    }
    double most = 0;
    for (const auto& [name, times, colour] : lines) {
        most = std::max({most, times.median.value_or(0), times.p90.value_or(0)});
    }
    if (most <= 0) {
        return "";
    }
    std::vector<Bar> bars;
    for (const auto& [name, times, colour] : lines) {
        bars.push_back(time_bar(name, times, most, colour));
    }
    return html::section("Iteration time",
                         fmt::format("Rank {}: medians; the whiskers reach from the 10th to the "
                                     "90th percentile.",
                                     of->rank),
                         html::bars(bars) + html::axis(most, "ms"));
}

// One iteration of the first rank that learned one.
std::string iteration_section(const RunReport& run) {
    const auto of = std::find_if(run.ranks.begin(), run.ranks.end(),
                                 [](const ObserveFile& file) { return file.stable; });
    if (of == run.ranks.end() || of->buckets.empty()) {
        return html::section("One iteration", "No iteration was learned.", "");
    }
    const double compute = of->compute_ms.median.value_or(0);
    const double exposed = of->exposed_ms.median.value_or(0);
    double most = std::max(compute + exposed, of->time_ms.median.value_or(0));
    for (const ObservedBucket& bucket : of->buckets) {
        most = std::max(most,
                        bucket.ready_ms.median.value_or(0) + bucket.transfer_ms.median.value_or(0));
    }
    most = most > 0 ? most : 1;
    std::vector<Bar> bars;
    if (compute > 0) {
        bars.push_back({"computation",
                        fmt::format("{:.2f} ms, then {:.2f} waiting", compute, exposed),
                        {{0, compute / most * 100, Colour::Compute, "computation"},
                         {compute / most * 100, exposed / most * 100, Colour::Wait, "waiting"}},
                        0,
                        0});
    }
    constexpr std::size_t kShown = 64;
    for (std::size_t i = 0; i < std::min(of->buckets.size(), kShown); ++i) {
        const ObservedBucket& bucket = of->buckets[i];
        const double ready = std::max(bucket.ready_ms.median.value_or(0), 0.0);
        bars.push_back(
            {fmt::format("bucket {}, {}", i, size_text(static_cast<double>(bucket.bytes))),
             fmt::format("ready {}, takes {}", number_text(bucket.ready_ms.median),
                         ms(bucket.transfer_ms.median)),
             {{ready / most * 100, bucket.transfer_ms.median.value_or(0) / most * 100,
               Colour::Transfer, fmt::format("bucket {}", i)}},
             0,
             0});
    }
    const std::string more =
        of->buckets.size() > kShown
            ? fmt::format(" The first {} of {} buckets are shown.", kShown, of->buckets.size())
            : "";
    return html::section(
        "One iteration",
        fmt::format("Rank {}: when the gradients of each bucket were ready, and how long their "
                    "transfer took. Medians, some of which are estimates.{}",
                    of->rank, more),
        html::legend({{Colour::Compute, "computation"},
                      {Colour::Wait, "waiting for transfers"},
                      {Colour::Transfer, "transfer"}}) +
            html::bars(bars) + html::axis(most, "ms"));
}

std::string late_section(const RunReport& run) {
    const std::vector<Latecomer> late = latecomers(run);
    Rows rows{{"bucket", "last rank", "behind the middle rank, ms"}};
    constexpr std::size_t kShown = 10;
    for (const Latecomer& each : late) {
        if (rows.size() <= kShown && each.late_ms > 0) {
            rows.push_back({fmt::format("{}", each.bucket), fmt::format("{}", each.rank),
                            fmt::format("{:.2f}", each.late_ms)});
        }
    }
    const ObserveFile* waited = nullptr;
    for (const ObserveFile& file : run.ranks) {
        const double exposed = file.exposed_ms.median.value_or(0);
        if (exposed > 0 && (waited == nullptr || exposed > *waited->exposed_ms.median)) {
            waited = &file;
        }
    }
    std::string sentence = rows.size() > 1
                               ? fmt::format(
                                     "Bucket {} was held up longest: rank {} was {} ms "
                                     "behind the middle rank.",
                                     rows[1][0], rows[1][1], rows[1][2])
                               : "No rank was behind the others, or fewer than two were timed.";
    if (waited != nullptr) {
        sentence += fmt::format(
            " Rank {} of {} waited longest for transfers: {:.2f} ms an "
            "iteration.",
            waited->rank, printable(waited->host), *waited->exposed_ms.median);
    }
    return html::section("What was late", sentence, html::table(rows));
}

struct LinkSum {
    double sent = 0, received = 0, again = 0, busy_ms = 0;
    std::int64_t transitions = 0;
};

// A host's name without its domain, where that tells all hosts of the run apart: a whole one does
// not fit next to a bar. The table has it.
std::string short_name(const RunReport& run, const std::string& host) {
    const auto first = [](const std::string& name) { return name.substr(0, name.find('.')); };
    const bool clear = std::all_of(run.ranks.begin(), run.ranks.end(), [&](const auto& file) {
        return file.host == host || first(file.host) != first(host);
    });
    const bool number = host.find_first_not_of("0123456789.:") == host.npos;
    return clear && !number ? first(host) : host;
}

std::string links_section(const RunReport& run) {
    std::map<std::pair<std::string, std::string>, LinkSum> links;
    double most = 0;
    for (const ObserveFile& file : run.ranks) {
        for (const ObservedLink& link : file.links) {
            LinkSum& sum = links[{file.host, link.name}];
            sum.sent += static_cast<double>(link.bytes_sent);
            sum.received += static_cast<double>(link.bytes_received);
            sum.again += static_cast<double>(link.resent_bytes);
            sum.transitions = add_counts(sum.transitions, link.transitions);
            // Ranks of a host share its links: the busiest counts.
            sum.busy_ms = std::max(sum.busy_ms, link.busy_ms.value_or(0));
            most = std::max(most, sum.sent);
        }
    }
    if (links.empty()) {
        return html::section("Links", "No traffic went through deft's plugin.", "");
    }
    std::vector<Bar> bars;
    Rows rows{{"host", "link", "sent", "received", "sent again", "changes of state", "busy ms"}};
    for (const auto& [place, sum] : links) {
        bars.push_back({short_name(run, place.first) + " " + place.second,
                        size_text(sum.sent),
                        {{0, most > 0 ? sum.sent / most * 100 : 0, Colour::Transfer, "sent"}},
                        0,
                        0});
        rows.push_back({place.first, place.second, size_text(sum.sent), size_text(sum.received),
                        size_text(sum.again), fmt::format("{}", sum.transitions),
                        fmt::format("{:.1f}", sum.busy_ms)});
    }
    return html::section("Links",
                         "Bytes by link, of all ranks of a host. A link that stalls changes its "
                         "state, and its bytes go again over another.",
                         html::bars(bars) + html::table(rows) + stalls_table(run));
}

std::string plans_section(const RunReport& run) {
    Rows rows{{"rank", "state", "policy", "reason", "predicted ms", "before ms", "came into force",
               "ended", "guard decisions"}};
    for (const ObserveFile& file : run.ranks) {
        for (const ObservedPlan& plan : file.plans) {
            rows.push_back({fmt::format("{}", file.rank), plan.state,
                            plan.policy.empty() ? "none" : plan.policy, plan.reason,
                            number_text(plan.predicted_ms), number_text(plan.before_ms),
                            fmt::format("{}", plan.switched), fmt::format("{}", plan.ended),
                            fmt::format("{}", plan.guard_decisions)});
        }
    }
    return rows.size() == 1
               ? ""
               : html::section("Plans and guard",
                               "What each rank says of its communicators. The leader plans, as a "
                               "rule rank 0: its line counts.",
                               html::table(rows));
}

// Of a plan that has fallen: when it was in force, what came late, and what the loss did.
std::string cost_text(const ObservedDecision& fall) {
    if (fall.to <= 0) {
        return "";
    }
    std::string text = fmt::format(
        "in force in iterations {} to {}; gradients up to {} iterations late; {} dropped",
        fall.from, fall.to, fall.late_by, fall.dropped);
    if (fall.loss_expected && fall.loss_seen) {
        text += fmt::format("; loss {:.4g}, its trend {:.4g} at most", *fall.loss_seen,
                            *fall.loss_expected);
    }
    return text;
}

// What the guard has decided, and why.
std::string guard_section(const RunReport& run) {
    Rows rows{{"iteration", "decision", "reason", "what it cost", "rank"}};
    for (const ObserveFile& file : run.ranks) {
        for (const ObservedPlan& plan : file.plans) {
            for (const ObservedDecision& each : plan.guard_history) {
                rows.push_back({fmt::format("{}", each.iteration),
                                each.action + (each.acted ? "" : " (only said: DEFT_GUARD=warn)"),
                                each.reason, cost_text(each), fmt::format("{}", file.rank)});
            }
        }
    }
    return rows.size() == 1
               ? ""
               : html::section("The guard's decisions",
                               "When the accuracy guard found that the training does not bear a "
                               "plan, and what it measured.",
                               html::table(rows));
}

std::string ranks_section(const RunReport& run) {
    Rows rows{{"rank", "host", "iteration ms", "computation ms", "waiting ms", "coverage",
               "iterations", "hooked calls", "plugin"}};
    if (!run.one_run) {
        rows.front().insert(rows.front().end(), {"mode", "job", "file"});
    }
    for (const ObserveFile& file : run.ranks) {
        rows.push_back({fmt::format("{}", file.rank), file.host, number_text(file.time_ms.median),
                        number_text(file.compute_ms.median), number_text(file.exposed_ms.median),
                        number_text(file.coverage_rate.median),
                        fmt::format("{}", file.iterations_seen),
                        fmt::format("{}", file.all_calls()), file.plugin_loaded ? "yes" : "no"});
        if (!run.one_run) {
            rows.back().insert(rows.back().end(), {file.mode, file.job.id, file.path});
        }
    }
    return html::section("Ranks", "Medians of each rank.", html::table(rows));
}

std::string job_section(const RunReport& run) {
    const ObserveFile& first = run.ranks.front();
    std::set<std::string> hosts;
    std::string written;
    for (const ObserveFile& file : run.ranks) {
        hosts.insert(file.host);
        written = std::max(written, file.job.written);
    }
    Rows rows{{"", ""}};
    const auto add = [&](const char* name, const std::string& value) {
        if (!value.empty()) {
            rows.push_back({name, value});
        }
    };
    add("job", first.job.id);
    add("command", first.job.command);
    add("started", first.job.started);
    add("latest record", written);
    add("mode", first.mode);
    add("gradients", first.gradients);
    add("ranks", fmt::format("{} of {} have a record", run.ranks.size(), first.ranks));
    add("hosts", fmt::format("{}", fmt::join(hosts, ", ")));
    add("NCCL", fmt::format("{} ({})", nccl_text(first.nccl_version), first.nccl_path));
    add("deft", first.library_version);
    std::string list;
    for (const std::string& problem : run.problems) {
        list += fmt::format("<li class=\"problem\">problem: {}</li>\n", html::escaped(problem));
    }
    for (const std::string& note : run.notes) {
        list += fmt::format("<li>note: {}</li>\n", html::escaped(note));
    }
    return html::section("The job", "Which job this was, and what its records say of themselves.",
                         html::table(rows) + (list.empty() ? "" : "<ul>\n" + list + "</ul>\n"));
}

std::string problem_text(const RunReport& run) {
    std::string text;
    for (const std::string& problem : run.problems) {
        text +=
            fmt::format("<p class=\"verdict\"><b>Problem:</b> {}</p>\n", html::escaped(problem));
    }
    return text;
}

}  // namespace

std::string html_report(const RunReport& run) {
    if (!run.one_run) {
        const std::string title = "deft: files of several runs";
        return html::page(title, "<h1>" + title +
                                     "</h1>\n<p class=\"verdict\">Nothing of them is put "
                                     "together.</p>\n" +
                                     problem_text(run) + ranks_section(run));
    }
    const ObserveFile& first = run.ranks.front();
    const PlanGain gain = gain_of(run);
    const std::string title = fmt::format("deft: {}{} ranks, mode {}",
                                          first.job.id.empty() ? "" : "job " + first.job.id + ", ",
                                          first.ranks, first.mode.empty() ? "?" : first.mode);
    std::string body = fmt::format("<h1>{}</h1>\n<p class=\"verdict\">{}</p>\n",
                                   html::escaped(title), html::escaped(verdict(run, gain)));
    body +=
        problem_text(run) + cards(run, gain) + times_section(run, gain) + iteration_section(run);
    body += late_section(run) + links_section(run) + plans_section(run);
    body += guard_section(run) + ranks_section(run);
    return html::page(title, body + job_section(run));
}

}  // namespace deft::tools
