// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/trace_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "tools/planner/fields.h"

namespace deft::tools {
namespace {

enum class Kind {
    DataParallel,
    Other,   // of the activations, of experts, of norms
    Unknown  // its description does not tell
};

// "DATA_PARALLEL_GROUP" -> {"data", "parallel", "group"}.
std::vector<std::string> words_of(std::string_view text) {
    std::vector<std::string> words(1);
    for (const char c : text) {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
            words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        } else if (!words.back().empty()) {
            words.emplace_back();
        }
    }
    return words;
}

bool any_of(const std::vector<std::string>& words, std::initializer_list<std::string_view> known) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
        return std::find(known.begin(), known.end(), word) != known.end();
    });
}

Kind kind_of(const TraceGroup& group) {
    const std::vector<std::string> words = words_of(group.description);
    if (any_of(words, {"tensor", "tp", "pipeline", "pp", "sequence", "sp", "embedding", "expert",
                       "ep", "model", "mp"})) {
        return Kind::Other;
    }
    if (any_of(words, {"data", "dp", "ddp", "replicate"})) {
        return Kind::DataParallel;
    }
    return any_of(words, {"context", "cp"}) ? Kind::Other : Kind::Unknown;
}

std::string list_of(const std::vector<TraceGroup>& groups) {
    std::string list;
    for (const TraceGroup& group : groups) {
        list += (list.empty() ? "" : ", ") + group.text();
    }
    return list;
}

}  // namespace

std::string TraceGroup::text() const {
    std::string text = name.empty() ? "without a name" : name;
    if (!description.empty()) {
        text += " \"" + description + "\"";
    }
    text += fmt::format(" ({} sums, {:.1f} MiB", sums, static_cast<double>(bytes) / 0x1p20);
    return text + (ranks == 0 ? ")" : fmt::format(", {} ranks)", ranks));
}

bool sums_no_gradients(const TraceGroup& group) {
    return kind_of(group) == Kind::Other;
}

bool scatters_gradients(const TraceGroups& groups) {
    return !std::all_of(groups.scattered.begin(), groups.scattered.end(), sums_no_gradients);
}

void refuse_scattered(const std::string& file) {
    throw InputError(file +
                     ": traceEvents: this job sums by reduce-scatter (FSDP, ZeRO), not by "
                     "all-reduce; deft plans only all-reduces so far");
}

namespace {

std::size_t named_group(const std::string& file, const std::vector<TraceGroup>& groups,
                        const std::string& wanted) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
        if (groups[i].name == wanted || groups[i].description == wanted) {
            return i;
        }
    }
    throw InputError(fmt::format("{}: no process group '{}' sums 1 KiB or more; there are: {}",
                                 file, wanted, list_of(groups)));
}

std::optional<std::size_t> likely_group(const std::vector<TraceGroup>& groups) {
    std::vector<std::size_t> named;
    std::vector<std::size_t> possible;
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const Kind kind = kind_of(groups[i]);
        // Gradients are summed in backward.
        const bool backward = groups[i].in_forward * 2 <= groups[i].sums;
        if (kind == Kind::DataParallel) {
            named.push_back(i);
        } else if (kind == Kind::Unknown && (backward || groups.size() == 1)) {
            possible.push_back(i);
        }
    }
    if (!named.empty()) {
        // The gradients of most layers; experts' have a group of their own.
        return *std::max_element(named.begin(), named.end(), [&](std::size_t a, std::size_t b) {
            return groups[a].bytes < groups[b].bytes;
        });
    }
    return possible.size() == 1 ? std::optional(possible.front()) : std::nullopt;
}

// Of the reduce-scatters, bytes that are gradients if those of `chosen` are.
std::uint64_t scattered_gradients(const TraceGroups& groups, const TraceGroup& chosen, bool asked) {
    std::uint64_t bytes = 0;
    for (const TraceGroup& group : groups.scattered) {
        const Kind kind = kind_of(group);
        const bool same = group.is(chosen);
        // What says nothing of itself stands behind what is described. Sequence parallelism
        // scatters as often in forward as in backward.
        const bool likely = kind == Kind::DataParallel ||
                            (kind == Kind::Unknown && kind_of(chosen) == Kind::Unknown &&
                             group.in_forward * 4 <= group.sums);
        bytes += same || (likely && !asked) ? group.bytes : 0;
    }
    return bytes;
}

}  // namespace

std::size_t data_parallel_group(const std::string& file, const TraceGroups& groups,
                                const std::string& wanted) {
    const std::vector<TraceGroup>& reduced = groups.reduced;
    const bool asked = !wanted.empty();
    const std::optional<std::size_t> chosen =
        asked ? std::optional(named_group(file, reduced, wanted)) : likely_group(reduced);
    // Metrics may be summed next to gradients that are scattered, and shards of theirs across
    // hosts.
    const bool scattered =
        chosen ? scattered_gradients(groups, reduced[*chosen], asked) > reduced[*chosen].bytes
               : scatters_gradients(groups);
    if (scattered) {
        refuse_scattered(file);
    }
    if (!chosen && reduced.size() == 1) {
        throw InputError(
            fmt::format("{}: the only process group that sums is not the data-parallel one: {}; "
                        "name it with --group if these are gradients",
                        file, list_of(reduced)));
    }
    if (!chosen) {
        throw InputError(
            fmt::format("{}: sums of several process groups, and nothing says which of them are "
                        "gradients; name one with --group: {}",
                        file, list_of(reduced)));
    }
    return *chosen;
}

bool is_beside(const TraceGroup& group, const TraceGroups& groups, std::size_t chosen, bool asked) {
    const TraceGroup& ours = groups.reduced[chosen];
    if (group.name == ours.name && (group.description.empty() || group.is(ours))) {
        return false;
    }
    const bool weighed =
        std::any_of(groups.reduced.begin(), groups.reduced.end(), [&](const TraceGroup& other) {
            return other.name == group.name &&
                   (group.description.empty() || group.description == other.description);
        });
    if (asked || weighed) {
        return !group.name.empty() || !group.description.empty();
    }
    switch (kind_of(group)) {
        case Kind::Other:
            return true;
        case Kind::DataParallel:
            return kind_of(ours) == Kind::DataParallel;
        case Kind::Unknown:
            // DDP's own group is the whole job's.
            return !group.name.empty() &&
                   (kind_of(ours) == Kind::DataParallel || ours.description == "default_pg");
    }
    return false;
}

}  // namespace deft::tools
