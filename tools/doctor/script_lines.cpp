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

// No byte of a text.
bool is_binary(char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return byte < 0x20 && byte != '\t' && byte != '\r' && byte != '\f' && byte != 0x1b;
}

// Without what is quoted, but for the word behind "<<".
std::string_view unquoted(std::string_view line, std::string& store) {
    store = line;
    char quote = '\0';
    for (std::size_t i = 0; i < store.size(); ++i) {
        const char letter = store[i];
        if (quote != '\0') {
            quote = letter == quote ? '\0' : quote;
            store[i] = letter == '<' ? ' ' : letter;
        } else if (letter == '\\') {
            ++i;
        } else if (letter == '"' || letter == '\'') {
            quote = letter;
        }
    }
    return store;
}

}  // namespace

std::string text_handed_on(std::string_view whole_line) {
    std::string store;
    const std::string_view line = unquoted(whole_line, store);
    for (auto at = line.find("<<"); at != line.npos; at = line.find("<<", at)) {
        const auto end = std::min(line.find_first_not_of('<', at), line.size());
        std::string_view word = end - at == 2 ? line.substr(end) : std::string_view();
        at = end;
        word.remove_prefix(std::min(word.find_first_not_of("- \t'\"\\"), word.size()));
        const auto in_word = [](unsigned char letter) {
            return std::isalnum(letter) != 0 || letter == '_';
        };
        const auto* const behind = std::find_if_not(word.begin(), word.end(), in_word);
        if (behind != word.begin() && std::isdigit(static_cast<unsigned char>(word[0])) == 0) {
            return std::string(word.begin(), behind);
        }
    }
    return {};
}

bool has(std::string_view text, std::string_view what) {
    return text.find(what) != text.npos;
}

void for_each_line(std::string_view text, const EachLine& each) {
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
        each(first, trimmed(line), line.starts_with(' ') || line.starts_with('\t'));
    }
}

CrLine first_cr_line(std::string_view script) {
    std::string end_of_text;  // of a `<<END` that has begun
    for (int number = 1; !script.empty(); ++number) {
        const auto end = script.find('\n');
        std::string_view line = script.substr(0, end);
        script = end == script.npos ? std::string_view() : script.substr(end + 1);
        if (std::any_of(line.begin(), line.end(), is_binary)) {
            break;
        }
        const bool ends_in_cr = end != script.npos && line.ends_with('\r');
        line.remove_suffix(ends_in_cr ? 1 : 0);
        if (!end_of_text.empty()) {
            if (trimmed(line) == end_of_text) {
                end_of_text.clear();
            }
            continue;
        }
        const bool comment = trimmed(line).starts_with('#');
        if (ends_in_cr && (!comment || (number == 1 && line.starts_with("#!")))) {
            return {number, line};
        }
        if (!comment) {
            end_of_text = text_handed_on(line);
        }
    }
    return {};
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
