// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/script_lines.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>

namespace deft::tools::doctor {
namespace {

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r");
    const auto last = text.find_last_not_of(" \t\r");
    return first == text.npos ? std::string_view() : text.substr(first, last - first + 1);
}

bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](std::string_view word) { return has(text, word); });
}

// grep's -v, Python's `not` and `!=`: what is named stays, all else goes.
bool names_what_stays(std::string_view text) {
    for (auto at = text.find("grep -"); at != text.npos; at = text.find("grep -", at + 1)) {
        const std::string_view options = text.substr(at + 6, text.find(' ', at + 6) - at - 6);
        if (has(options, "v")) {
            return true;
        }
    }
    return false;
}

}  // namespace

bool has(std::string_view text, std::string_view what) {
    return text.find(what) != text.npos;
}

void for_each_line(std::string_view text,
                   const std::function<void(int number, std::string_view line)>& each) {
    int number = 0;
    while (!text.empty()) {
        const int first = ++number;
        std::string line;
        for (;;) {
            const auto end = text.find('\n');
            std::string_view part = text.substr(0, end);
            text = end == text.npos ? std::string_view() : text.substr(end + 1);
            if (!part.ends_with('\\') || text.empty()) {
                line += part;
                break;
            }
            part.remove_suffix(1);
            line += part;
            ++number;
        }
        each(first, trimmed(line));
    }
}

bool names_ours(std::string_view value) {
    return has(value, "libnccl-net-deft") || has(value, "libdeft-preload");
}

bool keeps_preload(std::string_view value) {
    return has(value, "LD_PRELOAD") || names_ours(value);
}

bool names_others(std::string_view text) {
    const auto is_name = [](char letter) {
        return std::isupper(static_cast<unsigned char>(letter)) != 0 || letter == '_';
    };
    for (std::size_t at = 0; at < text.size(); ++at) {
        std::size_t end = at;
        while (end < text.size() && is_name(text[end])) {
            ++end;
        }
        const bool expansion = at > 0 && (text[at - 1] == '$' || text[at - 1] == '{');
        if (end - at >= 3 && !expansion) {
            return true;
        }
        at = std::max(at, end);
    }
    return false;
}

bool names_preload(std::string_view text) {
    const auto in_name = [&](std::size_t at) {
        const auto letter = static_cast<unsigned char>(at < text.size() ? text[at] : ' ');
        return std::isalnum(letter) != 0 || letter == '_';
    };
    constexpr std::string_view kBeginning = "LD_";
    for (auto at = text.find(kBeginning); at != text.npos; at = text.find(kBeginning, at + 1)) {
        const std::size_t behind = at + kBeginning.size();
        const bool whole = !in_name(behind) || text.substr(behind).starts_with("PRELOAD");
        if (whole && (at == 0 || !in_name(at - 1))) {
            return true;
        }
    }
    return false;
}

Removal removal_by(std::string_view text) {
    const bool ours = names_preload(text);
    if (names_what_stays(text)) {
        return ours ? Removal::No : Removal::Perhaps;
    }
    if (ours) {
        return Removal::Yes;
    }
    return names_others(text) ? Removal::No : Removal::Perhaps;
}

bool lists_environment(std::string_view text) {
    return has_any(text, {"env ", "env|", "env)", "printenv", "compgen", "declare -", "export -p",
                          "set |", "environ"});
}

}  // namespace deft::tools::doctor
