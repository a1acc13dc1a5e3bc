// SPDX-License-Identifier: Apache-2.0
// The report of a run for people.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tools/report.h"
#include "tools/report_spread.h"
#include "tools/report_stalls.h"
#include "tools/report_words.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

// Rows of cells, the columns as wide as their widest cell, numbers to the right.
class Table {
public:
    explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
    bool empty() const { return rows_.size() == 1; }

    std::string text() const {
        std::vector<std::size_t> widths(rows_.front().size(), 0);
        for (const auto& row : rows_) {
            for (std::size_t i = 0; i < row.size(); ++i) {
                widths[i] = std::max(widths[i], row[i].size());
            }
        }
        std::string text;
        for (const auto& row : rows_) {
            std::string line;
            for (std::size_t i = 0; i < row.size(); ++i) {
                line += fmt::format("  {:>{}}", row[i], widths[i]);
            }
            text += line + "\n";
        }
        return text;
    }

private:
    std::vector<std::vector<std::string>> rows_;
};

// "12.3", and with several ranks "12.3 [11.8..13.0]".
std::string spread_text(const RunReport& run, const Spread& values, int digits = 2) {
    if (!values.middle) {
        return "-";
    }
    const std::string middle = number_text(values.middle, digits);
    return run.ranks.size() < 2
               ? middle
               : fmt::format("{} [{}..{}]", middle, number_text(values.lowest, digits),
                             number_text(values.highest, digits));
}

std::int64_t calls_of(const ObserveFile& file, std::string_view name) {
    for (const auto& [other, count] : file.calls) {
        if (other == name) {
            return count;
        }
    }
    return 0;
}

std::string path_lines(const RunReport& run) {
    std::int64_t least = INT64_MAX, most = 0, reduces = 0, plugin_calls = 0;
    std::size_t loaded = 0;
    std::set<std::int64_t> abis;
    for (const ObserveFile& file : run.ranks) {
        least = std::min(least, file.all_calls());
        most = std::max(most, file.all_calls());
        reduces = std::max(reduces, calls_of(file, "ncclAllReduce"));
        loaded += file.plugin_loaded;
        plugin_calls = add_counts(plugin_calls, file.plugin_calls);
        if (file.plugin_loaded) {
            abis.insert(file.plugin_abi);
        }
    }
    std::string text;
    text += least > 0 ? fmt::format(
                            "hooks      in the path: {} NCCL calls seen on each rank, {} of "
                            "them ncclAllReduce\n",
                            least == most ? fmt::format("{}", least)
                                          : fmt::format("{} to {}", least, most),
                            reduces)
                      : std::string("hooks      NOT in the path on every rank (see below)\n");
    if (loaded == run.ranks.size()) {
        text += fmt::format(
            "plugin     in the path: loaded on every rank (net ABI v{}), called {} "
            "times\n",
            fmt::join(abis, ", v"), plugin_calls);
    } else {
        text += fmt::format("plugin     NOT in the path on {} of {} ranks\n",
                            run.ranks.size() - loaded, run.ranks.size());
    }
    return text;
}

// What an iteration under the plan counts for, where that is less than without it.
std::string worth_words(const ObservedPlan& plan) {
    const double updates = plan.updates_per_iteration.value_or(1);
    const double progress = plan.progress.value_or(1);
    return updates > 0.999 && progress > 0.999
               ? ""
               : fmt::format("; {:.3g} update{} an iteration, worth {:.3g} of one without it",
                             updates, updates == 1 ? "" : "s", progress);
}

// Whether a plan is in force, and if not, why not. `takes`: an iteration, measured since the plan
// came into force.
std::string plan_words(const ObservedPlan& plan, const std::optional<double>& takes) {
    const std::string why = plan.reason.empty() ? "" : ": " + printable(plan.reason);
    if (plan.policy.empty() || (plan.state != "running" && plan.switched == 0 && !why.empty())) {
        return fmt::format("none in force, state {}{}", printable(plan.state), why);
    }
    const auto ms = [](const std::optional<double>& value) {
        return value.value_or(0) > 0 ? number_text(value) : std::string("-");
    };
    const bool timed = plan.before_ms.value_or(0) > 0;
    const std::string figures = fmt::format("predicted {} ms per iteration, {} {} ms without it",
                                            ms(plan.predicted_ms), timed ? "measured" : "predicted",
                                            ms(timed ? plan.before_ms : plan.baseline_ms));
    const std::string policy = printable(plan.policy);
    if (plan.state == "running") {
        return fmt::format("'{}' in force: {}{}", policy,
                           takes ? fmt::format("measured {} ms per iteration, ", ms(takes)) : "",
                           figures) +
               worth_words(plan);
    }
    return fmt::format("'{}' {}, state {}{}: {}", policy,
                       plan.switched > 0 ? "was in force and is not any more" : "not in force",
                       printable(plan.state), why, figures);
}

// The ranks that tell the same of one communicator's plan.
struct PlanGroup {
    std::size_t communicator;
    const ObservedPlan* plan;
    std::vector<std::int64_t> ranks;
    std::optional<double> takes;  // of the first rank; of several plans nobody knows whose it is

    bool tells(std::size_t of, const ObservedPlan& other) const {
        return communicator == of && plan->state == other.state && plan->policy == other.policy &&
               plan->reason == other.reason;
    }
};

// One line for each communicator that could be planned for. Where its ranks tell different things,
// a line for each of them that says whose it is.
std::string plan_lines(const RunReport& run) {
    std::vector<PlanGroup> groups;
    for (const ObserveFile& file : run.ranks) {
        for (std::size_t i = 0; i < file.plans.size(); ++i) {
            const auto known =
                std::find_if(groups.begin(), groups.end(),
                             [&](const PlanGroup& group) { return group.tells(i, file.plans[i]); });
            if (known != groups.end()) {
                known->ranks.push_back(file.rank);
            } else {
                const bool its_own = file.plans.size() == 1 && file.stable;
                groups.push_back(
                    {i, &file.plans[i], {file.rank}, its_own ? file.time_ms.median : std::nullopt});
            }
        }
    }
    std::stable_sort(groups.begin(), groups.end(), [](const PlanGroup& a, const PlanGroup& b) {
        return a.communicator < b.communicator;
    });
    std::string text;
    bool differ = false;
    for (const PlanGroup& group : groups) {
        const bool alone = std::count_if(groups.begin(), groups.end(), [&](const PlanGroup& other) {
                               return other.communicator == group.communicator;
                           }) == 1;
        if (!alone) {
            differ = true;
        }
        text +=
            fmt::format("plan       {}{}\n",
                        alone ? ""
                              : fmt::format("{} {}: ", group.ranks.size() == 1 ? "rank" : "ranks",
                                            ranges(group.ranks)),
                        plan_words(*group.plan, group.takes));
    }
    if (differ) {
        text +=
            "           the communicator's leader, as a rule its rank 0, plans: its line counts\n";
    }
    return text;
}

// How NCCL carries out calls, as far as that was chosen; of the leaders, who alone tell it.
std::string tuner_lines(const RunReport& run) {
    std::string text;
    for (const ObserveFile& file : run.ranks) {
        for (const ObservedPlan& plan : file.plans) {
            const ObservedTuning& tuning = plan.tuning;
            if (tuning.state.empty()) {
                continue;
            }
            text += fmt::format("tuner      {}{}\n", printable(tuning.state),
                                tuning.reason.empty()
                                    ? fmt::format(": an iteration takes {} times as long as before",
                                                  number_text(tuning.ratio))
                                    : ": " + printable(tuning.reason));
            for (const ObservedTuning::Call& call : tuning.calls) {
                text += fmt::format("           {}: {}, {} ms (NCCL's own choice {} ms)\n",
                                    printable(call.call), printable(call.choice),
                                    number_text(call.chosen_ms), number_text(call.own_ms));
            }
        }
    }
    return text;
}

// In the modes that may delay, merge or filter what they know to be gradients: whether they know.
std::string gradient_lines(const RunReport& run) {
    std::set<std::string> told;
    std::string text;
    for (const ObserveFile& file : run.ranks) {
        const bool asks = file.mode == "deft" || file.mode == "covap";
        if (!asks || file.gradients.empty() || !told.insert(file.gradients).second) {
            continue;
        }
        text += file.gradients == "trust"
                    ? "gradients  trusted: the operator says that the large sums are gradients "
                      "(DEFT_GRADIENTS=trust)\n"
                    : fmt::format(
                          "gradients  mode {} delays or merges what the companions of all ranks "
                          "have proven (docs/companion.md)\n",
                          file.mode);
    }
    return text;
}

std::string bucket_lines(const RunReport& run) {
    // Times of a rank whose iteration is another one would be compared with the wrong bucket.
    const auto stable = std::find_if(run.ranks.begin(), run.ranks.end(),
                                     [](const ObserveFile& file) { return file.stable; });
    if (stable == run.ranks.end() || stable->buckets.empty()) {
        return "buckets    none learned\n";
    }
    Table table({"#", "size", "type", "op", "in place", "ready ms", "transfer ms", "Gbit/s"});
    for (std::size_t i = 0; i < stable->buckets.size(); ++i) {
        const ObservedBucket& bucket = stable->buckets[i];
        const auto figure = [&](Quantiles ObservedBucket::*which) {
            return spread(run, [&, which](const ObserveFile& file) -> std::optional<double> {
                const bool same =
                    file.stable && i < file.buckets.size() && file.buckets[i].bytes == bucket.bytes;
                return same ? (file.buckets[i].*which).median : std::nullopt;
            });
        };
        const Spread transfer = figure(&ObservedBucket::transfer_ms);
        std::optional<double> rate;
        if (transfer.middle && *transfer.middle > 0) {
            rate = static_cast<double>(bucket.bytes) * 8 / *transfer.middle / 1e6;
        }
        table.add({fmt::format("{}", bucket.position), size_text(static_cast<double>(bucket.bytes)),
                   printable(bucket.type), printable(bucket.op), bucket.in_place ? "yes" : "no",
                   spread_text(run, figure(&ObservedBucket::ready_ms)), spread_text(run, transfer),
                   number_text(rate)});
    }
    return "buckets of an iteration" +
           std::string(run.ranks.size() > 1 ? " (median over ranks [lowest..highest rank])" : "") +
           "\n" + table.text();
}

// Where calls waited for each other, computation is known between bounds only (docs/observe.md).
std::string guessed_lines(const RunReport& run, const Spread& compute, const Spread& coverage) {
    constexpr double kClose = 1.1;
    const Spread most =
        spread(run, [](const ObserveFile& file) { return file.latest_start_ms.median; });
    if (!most.middle || !compute.middle || !coverage.middle || *compute.middle <= 0 ||
        *most.middle <= kClose * *compute.middle) {
        return "";
    }
    return fmt::format(
        "           calls waited for each other: computation may be up to {} ms, coverage down "
        "to {}\n",
        number_text(most.middle), number_text(*coverage.middle * *compute.middle / *most.middle));
}

std::string link_lines(const RunReport& run) {
    Table table({"host", "link", "kind", "Mbit/s", "sent", "received", "busy ms", "sent again",
                 "changes", "stalls"});
    struct Sum {
        double sent = 0, received = 0, again = 0;
        std::int64_t transitions = 0, stalls = 0;
        std::optional<double> busy, speed;
    };
    std::map<std::tuple<std::string, std::string, std::string>, Sum> links;
    for (const ObserveFile& file : run.ranks) {
        for (const ObservedLink& link : file.links) {
            Sum& sum = links[{file.host, link.name, link.kind}];
            sum.sent += static_cast<double>(link.bytes_sent);
            sum.received += static_cast<double>(link.bytes_received);
            sum.again += static_cast<double>(link.resent_bytes);
            sum.transitions = add_counts(sum.transitions, link.transitions);
            sum.stalls = add_counts(sum.stalls, link.all_stalls());
            if (link.busy_ms) {  // ranks of a host share its links: the busiest counts
                sum.busy = std::max(sum.busy.value_or(0), *link.busy_ms);
            }
            if (link.speed_mbps && *link.speed_mbps > 0) {
                sum.speed = std::max(sum.speed.value_or(0), *link.speed_mbps);
            }
        }
    }
    for (const auto& [key, sum] : links) {
        const auto& [host, name, kind] = key;
        table.add({printable(host), printable(name), printable(kind), number_text(sum.speed, 0),
                   size_text(sum.sent), size_text(sum.received), number_text(sum.busy, 1),
                   size_text(sum.again), fmt::format("{}", sum.transitions),
                   fmt::format("{}", sum.stalls)});
    }
    return table.empty() ? "links      no traffic went through the plugin\n"
                         : "links (all ranks of a host)\n" + table.text() + stall_lines(run);
}

std::string remark_lines(const RunReport& run) {
    std::string text;
    for (const std::string& note : run.notes) {
        text += "note: " + printable(note) + "\n";
    }
    for (const std::string& problem : run.problems) {
        text += "problem: " + printable(problem) + "\n";
    }
    return text;
}

// Each file by itself: a middle of two jobs' times is nobody's.
std::string apart_text(const RunReport& run) {
    Table table({"file", "job", "mode", "rank", "iteration ms", "coverage"});
    for (const ObserveFile& file : run.ranks) {
        table.add({printable(file.path), file.job.id.empty() ? "-" : printable(file.job.id),
                   printable(file.mode), fmt::format("{} of {}", file.rank, file.ranks),
                   number_text(file.time_ms.median), number_text(file.coverage_rate.median)});
    }
    return "files of several runs: nothing of them is put together\n" + table.text() +
           remark_lines(run);
}

}  // namespace

std::string human_report(const RunReport& run) {
    if (!run.one_run) {
        return apart_text(run);
    }
    const ObserveFile& first = run.ranks.front();
    std::set<std::string> hosts;
    std::int64_t seen = INT64_MAX;
    for (const ObserveFile& file : run.ranks) {
        hosts.insert(file.host);
        seen = std::min(seen, file.iterations_seen);
    }
    std::string text =
        fmt::format("deft {} observed {} of {} ranks on {} host{}; NCCL {} ({})\n",
                    printable(first.library_version), run.ranks.size(), first.ranks, hosts.size(),
                    hosts.size() == 1 ? "" : "s", nccl_text(first.nccl_version),
                    first.nccl_path.empty() ? "?" : printable(first.nccl_path));
    text += path_lines(run);
    const Spread time = spread(run, [](const ObserveFile& file) { return file.time_ms.median; });
    const Spread coverage =
        spread(run, [](const ObserveFile& file) { return file.coverage_rate.median; });
    text += fmt::format("iteration  {} ms; {} collectives; {} iterations seen{}\n",
                        spread_text(run, time), first.cycle_length, seen,
                        run.ranks.size() == 1 && first.time_ms.p10
                            ? fmt::format("; p10 {}, p90 {} of {}", number_text(first.time_ms.p10),
                                          number_text(first.time_ms.p90), first.time_ms.n)
                            : "");
    const Spread compute =
        spread(run, [](const ObserveFile& file) { return file.compute_ms.median; });
    const Spread exposed =
        spread(run, [](const ObserveFile& file) { return file.exposed_ms.median; });
    if (compute.middle || exposed.middle) {
        // They are of the sampled iterations, estimated, and each a median of its own.
        const double parts = compute.middle.value_or(0) + exposed.middle.value_or(0);
        const bool adds_up = !time.middle || !compute.middle || !exposed.middle ||
                             std::abs(parts - *time.middle) <= 0.05 * *time.middle;
        text += fmt::format("           {}{} ms computation, {} ms waiting for transfers{}\n",
                            adds_up ? "of which " : "", spread_text(run, compute),
                            spread_text(run, exposed),
                            adds_up ? ""
                                    : " (estimates from sampled iterations, which need not add up "
                                      "to the median of all)");
    }
    text += fmt::format(
        "coverage   {} (transfer time over computation time; above 1 the transfers "
        "cannot hide)\n",
        spread_text(run, coverage));
    text += guessed_lines(run, compute, coverage);
    text += gradient_lines(run) + plan_lines(run) + tuner_lines(run);
    return text + waiting_lines(run) + bucket_lines(run) + link_lines(run) + remark_lines(run);
}

}  // namespace deft::tools
