// SPDX-License-Identifier: Apache-2.0
// What the ranks of a job wrote, side by side.
#include <fmt/format.h>
#include <algorithm>
#include <set>

#include "tools/doctor/judge.h"
#include "tools/text_output.h"

namespace deft::tools::doctor {
namespace {

using Ranks = std::vector<ObserveFile>;

std::string rank_on(const ObserveFile& rank) {
    return fmt::format("rank {} on {}", rank.rank, rank.host);
}

// "a: rank 0-3; b: rank 4": which ranks say what.
template <class Value>
std::string by_value(const Ranks& ranks, Value&& value) {
    std::map<std::string, std::vector<std::int64_t>> said;
    for (const ObserveFile& rank : ranks) {
        said[value(rank)].push_back(rank.rank);
    }
    std::string text;
    for (auto& [what, numbers] : said) {
        std::sort(numbers.begin(), numbers.end());
        text += fmt::format("{}{}: rank {}", text.empty() ? "" : "; ", what, ranges(numbers));
    }
    return said.size() > 1 ? text : std::string();
}

void judge_versions(const Ranks& ranks, Diagnoses& found) {
    const auto differ = [&](Finding finding, const char* what, auto&& value) {
        const std::string text = by_value(ranks, value);
        if (!text.empty()) {
            found.push_back({finding, fmt::format("{}: {}", what, text), "the ranks' records", ""});
        }
    };
    differ(Finding::RecordsVersions, "ranks ran different builds of deft",
           [](const ObserveFile& rank) { return rank.library_version; });
    differ(Finding::RecordsNcclVersions, "ranks ran different versions of NCCL",
           [](const ObserveFile& rank) {
               return nccl_version_text(static_cast<int>(rank.nccl_version));
           });
    differ(Finding::RecordsModes, "ranks ran in different modes",
           [](const ObserveFile& rank) { return rank.mode; });
    differ(Finding::RecordsModes, "ranks ran with different DEFT_GRADIENTS",
           [](const ObserveFile& rank) { return rank.gradients; });
}

void judge_path(const Ranks& ranks, Diagnoses& found) {
    std::set<std::string> hosts;
    for (const ObserveFile& rank : ranks) {
        hosts.insert(rank.host);
    }
    std::vector<std::int64_t> unhooked, unplugged;
    std::string unhooked_on, unplugged_on;
    for (const ObserveFile& rank : ranks) {
        if (rank.all_calls() == 0) {
            unhooked.push_back(rank.rank);
            unhooked_on = rank.host;
        }
        // A job on one host needs no network, and NCCL loads its plugin all the same.
        if (!rank.plugin_loaded) {
            unplugged.push_back(rank.rank);
            unplugged_on = rank.host;
        }
    }
    std::sort(unhooked.begin(), unhooked.end());
    std::sort(unplugged.begin(), unplugged.end());
    if (!unhooked.empty()) {
        found.push_back({Finding::RecordsHooksMissed,
                         fmt::format("no NCCL call of rank {} (host {}) went through deft",
                                     ranges(unhooked), unhooked_on),
                         "calls counted by the hooks", ""});
    }
    if (!unplugged.empty()) {
        found.push_back({Finding::RecordsPluginMissed,
                         fmt::format("NCCL did not load deft's plugin in rank {} (host {})",
                                     ranges(unplugged), unplugged_on),
                         "member plugin of the records", ""});
    }
}

void judge_plans(const ObserveFile& rank, Diagnoses& found) {
    for (const ObservedPlan& plan : rank.plans) {
        if (plan.state == "no agreement") {
            found.push_back({Finding::RecordsNoAgreement,
                             fmt::format("{}: no agreement: {}", rank_on(rank), plan.reason),
                             rank.path, ""});
        } else if (plan.state == "resting" && !plan.reason.empty()) {
            found.push_back({Finding::RecordsResting,
                             fmt::format("{}: no more plans: {}", rank_on(rank), plan.reason),
                             rank.path, ""});
        }
    }
    if (!rank.events_note.empty()) {
        found.push_back({Finding::RecordsNoTimes,
                         fmt::format("{}: {}", rank_on(rank), rank.events_note), rank.path, ""});
    }
}

void judge_links_of(const ObserveFile& rank, Diagnoses& found) {
    const bool any = std::any_of(rank.links.begin(), rank.links.end(), [](const auto& link) {
        return link.bytes_sent + link.bytes_received > 0;
    });
    for (const ObservedLink& link : rank.links) {
        if (any && link.bytes_sent == 0 && link.bytes_received == 0) {
            found.push_back({Finding::RecordsLinkIdle,
                             fmt::format("{}: link {} carried nothing, and others did",
                                         rank_on(rank), link.name),
                             rank.path, ""});
        }
        // Each path comes up once, and goes down in the end.
        if (link.resent_bytes > 0) {
            found.push_back(
                {Finding::RecordsLinkFlaps,
                 fmt::format("{}: link {} sent {} bytes again, in {} changes of its "
                             "paths' states",
                             rank_on(rank), link.name, link.resent_bytes, link.transitions),
                 rank.path, ""});
        }
    }
}

void judge_hosts(const Ranks& ranks, Diagnoses& found) {
    const std::string text = by_value(ranks, [](const ObserveFile& rank) {
        std::vector<std::string> names;
        for (const ObservedLink& link : rank.links) {
            names.push_back(link.name);
        }
        std::sort(names.begin(), names.end());
        std::string list;
        for (const std::string& name : names) {
            list += (list.empty() ? "" : "+") + name;
        }
        return list.empty() ? std::string("none") : list;
    });
    if (!text.empty()) {
        found.push_back({Finding::RecordsLinks, "ranks used different links: " + text,
                         "member links of the records", ""});
    }
}

void judge_completeness(const Ranks& ranks, Diagnoses& found) {
    const std::int64_t expected = ranks.front().ranks;
    std::set<std::int64_t> present;
    for (const ObserveFile& rank : ranks) {
        present.insert(rank.rank);
    }
    const std::int64_t missing = expected - static_cast<std::int64_t>(present.size());
    if (missing > 0) {
        found.push_back({Finding::RecordsMissing,
                         fmt::format("{} of {} ranks have no file here", missing, expected),
                         fmt::format("first: {}", ranks.front().path), ""});
    }
}

}  // namespace

void judge_records(const Facts& facts, Diagnoses& found) {
    if (!facts.records) {
        return;
    }
    for (const std::string& problem : facts.records->unreadable) {
        found.push_back({Finding::RecordUnreadable, problem, "", ""});
    }
    const Ranks& ranks = facts.records->ranks;
    if (ranks.empty()) {
        return;
    }
    judge_versions(ranks, found);
    judge_path(ranks, found);
    for (const ObserveFile& rank : ranks) {
        judge_plans(rank, found);
        judge_links_of(rank, found);
    }
    judge_hosts(ranks, found);
    judge_completeness(ranks, found);
    for (const std::string& problem : facts.records->contradictions) {
        found.push_back({Finding::RecordsContradict, problem, "deft report", ""});
    }
}

}  // namespace deft::tools::doctor
