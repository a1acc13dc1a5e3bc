// SPDX-License-Identifier: Apache-2.0
#include "tools/report_stalls.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "tools/html_page.h"
#include "tools/report_gain.h"
#include "tools/report_words.h"
#include "tools/text_output.h"

namespace deft::tools {

std::string LinkStalls::bucket_words(std::size_t bucket) const {
    if (bounds_s.empty()) {
        return "of unknown length";
    }
    if (bucket == 0) {
        return fmt::format("up to {:g} s", bounds_s.front());
    }
    return bucket < bounds_s.size()
               ? fmt::format("of {:g} to {:g} s", bounds_s[bucket - 1], bounds_s[bucket])
               : fmt::format("above {:g} s", bounds_s.back());
}

std::vector<LinkStalls> stalls_of(const RunReport& run) {
    std::map<std::pair<std::string, std::string>, LinkStalls> links;
    for (const ObserveFile& file : run.ranks) {
        for (const ObservedLink& link : file.links) {
            if (link.all_stalls() == 0) {
                continue;
            }
            LinkStalls& sum = links[{file.host, link.name}];
            if (sum.counts.empty()) {
                sum = {file.host, link.name, link.stall_bounds_s,
                       std::vector<std::int64_t>(link.stalls.size(), 0), 0};
            }
            if (sum.bounds_s != link.stall_bounds_s) {
                continue;
            }
            for (std::size_t i = 0; i < link.stalls.size(); ++i) {
                sum.counts[i] = add_counts(sum.counts[i], link.stalls[i]);
            }
            sum.total_ms += link.stall_ms.value_or(0);
        }
    }
    std::vector<LinkStalls> list;
    for (auto& [key, stalls] : links) {
        list.push_back(std::move(stalls));
    }
    return list;
}

namespace {

// "3 up to 0.1 s, 1 of 1 to 3 s"
std::string histogram_words(const LinkStalls& link) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < link.counts.size(); ++i) {
        if (link.counts[i] > 0) {
            parts.push_back(fmt::format("{} {}", link.counts[i], link.bucket_words(i)));
        }
    }
    return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::string stall_lines(const RunReport& run) {
    std::string text;
    for (const LinkStalls& link : stalls_of(run)) {
        text +=
            fmt::format("  {} {}: away {}; {} ms in all\n", printable(link.host),
                        printable(link.name), histogram_words(link), number_text(link.total_ms, 0));
    }
    return text.empty()
               ? ""
               : "stalls (paths over a link were silent or lost until they were back)\n" + text;
}

std::string stalls_table(const RunReport& run) {
    std::vector<std::vector<std::string>> rows{{"host", "link", "stalls", "ms in all"}};
    for (const LinkStalls& link : stalls_of(run)) {
        rows.push_back(
            {link.host, link.name, histogram_words(link), number_text(link.total_ms, 0)});
    }
    return rows.size() == 1 ? "" : html::table(rows);
}

// Whom all others waited for, and who waited longest: the most that can be gained elsewhere.
std::string waiting_lines(const RunReport& run) {
    std::string text;
    const std::vector<Latecomer> late = latecomers(run);
    if (!late.empty()) {
        text += fmt::format(
            "latest     rank {}: its data for bucket {} are ready {} ms after those of "
            "the middle rank\n",
            late.front().rank, late.front().bucket, number_text(late.front().late_ms));
    }
    const ObserveFile* longest = nullptr;
    for (const ObserveFile& file : run.ranks) {
        if (file.exposed_ms.median &&
            (longest == nullptr || *file.exposed_ms.median > *longest->exposed_ms.median)) {
            longest = &file;
        }
    }
    if (run.ranks.size() > 1 && longest != nullptr) {
        text += fmt::format("           rank {} waits longest: {} ms of each iteration\n",
                            longest->rank, number_text(longest->exposed_ms.median));
    }
    return text;
}

}  // namespace deft::tools
