// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/trace_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
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

std::size_t data_parallel_group(const std::string& file, const std::vector<TraceGroup>& groups,
                                const std::string& wanted) {
    if (!wanted.empty()) {
        for (std::size_t i = 0; i < groups.size(); ++i) {
            if (groups[i].name == wanted || groups[i].description == wanted) {
                return i;
            }
        }
        throw InputError(fmt::format("{}: no process group '{}' sums 1 KiB or more; there are: {}",
                                     file, wanted, list_of(groups)));
    }
    if (groups.size() == 1) {
        return 0;
    }
    std::vector<std::size_t> named;
    std::vector<std::size_t> possible;
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const Kind kind = kind_of(groups[i]);
        if (kind == Kind::DataParallel) {
            named.push_back(i);
        } else if (kind == Kind::Unknown && groups[i].in_forward * 2 <= groups[i].sums) {
            // Gradients are summed in backward.
            possible.push_back(i);
        }
    }
    if (!named.empty()) {
        // The gradients of most layers; experts' have a group of their own.
        return *std::max_element(named.begin(), named.end(), [&](std::size_t a, std::size_t b) {
            return groups[a].bytes < groups[b].bytes;
        });
    }
    if (possible.size() == 1) {
        return possible.front();
    }
    throw InputError(
        fmt::format("{}: sums of several process groups, and nothing says which of them are "
                    "gradients; name one with --group: {}",
                    file, list_of(groups)));
}

}  // namespace deft::tools
