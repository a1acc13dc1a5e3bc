// SPDX-License-Identifier: Apache-2.0
#include "tools/top/top_text.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <map>

#include "tools/report_gain.h"
#include "tools/report_words.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

using Ranks = std::vector<LiveRank>;

// What is most worth to be known of a rank's plans: one in force, else why there is none.
std::string plan_of(const ObserveFile& rank) {
    if (rank.plans.empty()) {
        return rank.mode == "observe" ? "mode observe plans nothing" : "-";
    }
    RunReport alone;
    alone.ranks = {rank};
    const PlanGain gain = gain_of(alone);
    std::string text = gain.plan->state;
    if (text == "running") {
        text = gain.plan->policy;
        if (gain.change) {
            text += fmt::format(", {:.0f} % {}", std::abs(gain.change->middle) * 100,
                                gain.change->middle < 0 ? "quicker" : "slower");
        }
    } else if (!gain.plan->reason.empty()) {
        text += ": " + gain.plan->reason;
    }
    return text;
}

struct Traffic {
    std::string kind;
    double sent = 0, received = 0;  // bytes a second
    bool known = false;             // of one process at least
    double resent = 0;              // bytes
    std::int64_t changes = 0;
};
using Links = std::map<std::string, Traffic>;

double rate(std::int64_t now, std::int64_t before, double seconds) {
    return std::max(static_cast<double>(now) - static_cast<double>(before), 0.0) / seconds;
}

void add_rates(const LiveRank& rank, const ObservedLink& link, Traffic& sum) {
    const auto before = std::find_if(rank.earlier.begin(), rank.earlier.end(),
                                     [&](const auto& each) { return each.name == link.name; });
    if (before != rank.earlier.end() && rank.seconds > 0) {
        sum.known = true;
        sum.sent += rate(link.bytes_sent, before->bytes_sent, rank.seconds);
        sum.received += rate(link.bytes_received, before->bytes_received, rank.seconds);
    }
}

// By name, over the processes: those of one process show the same counters in all its ranks.
Links traffic_of(const Ranks& ranks) {
    std::map<std::pair<std::string, std::int64_t>, const LiveRank*> processes;
    for (const LiveRank& rank : ranks) {
        processes[{rank.record.host, rank.record.pid}] = &rank;
    }
    Links links;
    for (const auto& [process, rank] : processes) {
        for (const ObservedLink& link : rank->record.links) {
            Traffic& sum = links[link.name];
            sum.kind = link.kind;
            sum.resent += static_cast<double>(link.resent_bytes);
            sum.changes = add_counts(sum.changes, link.transitions);
            add_rates(*rank, link, sum);
        }
    }
    return links;
}

std::string rate_text(double bytes, bool known) {
    return known ? fmt::format("{:.1f}", bytes / 1e6) : "-";
}

// Lines that fit; the rest is counted in the last one.
class Screen {
public:
    Screen(std::size_t columns, std::size_t lines) : columns_(columns), lines_(lines) {}
    void add(const std::string& line) {
        // Whole characters: printable() leaves valid UTF-8.
        std::string cut = printable(line);
        std::size_t width = 0, end = 0;
        while (end < cut.size() && width < columns_) {
            ++end;
            while (end < cut.size() && (static_cast<unsigned char>(cut[end]) & 0xC0) == 0x80) {
                ++end;
            }
            ++width;
        }
        cut.resize(end);
        all_.push_back(cut);
    }
    std::string text() const {
        std::string text;
        const bool fits = all_.size() <= lines_;
        const std::size_t shown = fits ? all_.size() : std::max<std::size_t>(lines_, 1) - 1;
        for (std::size_t i = 0; i < shown; ++i) {
            text += all_[i] + "\n";
        }
        return fits ? text : text + fmt::format("({} more lines)\n", all_.size() - shown);
    }

private:
    std::size_t columns_, lines_;
    std::vector<std::string> all_;
};

void add_links(const Links& links, Screen& screen) {
    if (links.empty()) {
        return;
    }
    screen.add(fmt::format("{:>16} {:>5} {:>12} {:>12} {:>12} {:>8}", "link", "kind", "MB/s out",
                           "MB/s in", "MB resent", "changes"));
    for (const auto& [name, link] : links) {
        screen.add(fmt::format("{:>16} {:>5} {:>12} {:>12} {:>12.1f} {:>8}", name, link.kind,
                               rate_text(link.sent, link.known),
                               rate_text(link.received, link.known), link.resent / 1e6,
                               link.changes));
    }
}

void add_job(const Ranks& ranks, Screen& screen) {
    const ObserveFile& first = ranks.front().record;
    screen.add("");
    screen.add(fmt::format("{}{} of {} ranks here, mode {}: {}",
                           first.job.id.empty() ? "" : "job " + first.job.id + ", ", ranks.size(),
                           first.ranks, first.mode, first.job.command));
    screen.add(fmt::format("{:>5} {:>8} {:>9} {:>8} {:>8} {:>6}  {}", "rank", "pid", "iteration",
                           "ms", "exposed", "cover", "plan"));
    for (const LiveRank& live : ranks) {
        const ObserveFile& rank = live.record;
        screen.add(fmt::format("{:>5} {:>8} {:>9} {:>8} {:>8} {:>6}  {}", rank.rank, rank.pid,
                               rank.iterations_seen, number_text(rank.time_ms.median, 1),
                               number_text(rank.exposed_ms.median, 1),
                               number_text(rank.coverage_rate.median), plan_of(rank)));
    }
    add_links(traffic_of(ranks), screen);
}

// Ranks of one job have a communicator in common. The id alone does not tell: jobs that no
// scheduler has started have none, and steps of a Slurm job share one.
bool in_one_job(const ObserveFile& one, const ObserveFile& other) {
    if (one.job.id != other.job.id) {
        return false;
    }
    if (one.communicators.empty() || other.communicators.empty()) {
        return one.job.command == other.job.command;
    }
    return std::any_of(one.communicators.begin(), one.communicators.end(), [&](const auto& name) {
        return std::find(other.communicators.begin(), other.communicators.end(), name) !=
               other.communicators.end();
    });
}

std::vector<Ranks> jobs_of(const Ranks& ranks) {
    std::vector<Ranks> jobs;
    for (const LiveRank& rank : ranks) {
        const auto own = std::find_if(jobs.begin(), jobs.end(), [&](const Ranks& job) {
            return std::any_of(job.begin(), job.end(), [&](const LiveRank& each) {
                return in_one_job(each.record, rank.record);
            });
        });
        (own == jobs.end() ? jobs.emplace_back() : *own).push_back(rank);
    }
    return jobs;
}

}  // namespace

std::string top_text(const TopScreen& screen) {
    Screen out(screen.columns, screen.lines);
    out.add(fmt::format("deft top: {} {}, {} rank{}", screen.host, screen.time, screen.ranks.size(),
                        screen.ranks.size() == 1 ? "" : "s"));
    for (const std::string& socket : screen.silent) {
        out.add(socket + ": no answer; the process is stopped, or too busy");
    }
    for (const Ranks& job : jobs_of(screen.ranks)) {
        add_job(job, out);
    }
    return out.text();
}

}  // namespace deft::tools
