// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/shell_value.h"

#include <algorithm>
#include <cctype>

#include "tools/doctor/rendezvous.h"
#include "tools/doctor/script_lines.h"

namespace deft::tools::doctor {
namespace {

bool in_name(char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

// The line behind `NAME=` and a quote, where something is to be computed; empty: nowhere.
std::string_view behind_name(std::string_view line, const std::string& name) {
    const std::string beginning = name + "=";
    for (auto at = line.find(beginning); at != line.npos; at = line.find(beginning, at + 1)) {
        std::string_view rest = line.substr(at + beginning.size());
        rest.remove_prefix(rest.starts_with('"') ? 1 : 0);
        if ((at == 0 || !in_name(line[at - 1])) &&
            (rest.starts_with('$') || rest.starts_with('`'))) {
            return rest;
        }
    }
    return {};
}

// Whether `text` is the host's own address and then a character of `ends`, or the line's end.
bool is_own_address(std::string_view text, std::string_view ends) {
    for (const std::string_view form : {"$(hostname -i)", "`hostname -i`"}) {
        if (text.starts_with(form)) {
            const std::string_view rest = text.substr(form.size());
            return rest.empty() || has(ends, rest.substr(0, 1));
        }
    }
    return false;
}

}  // namespace

ShellValue shell_value(std::string_view line, const std::string& name, const std::string& value) {
    using Kind = ShellValue::Kind;
    const std::string_view text = behind_name(line, name);
    if (!has(value, "$") && (!value.empty() || !text.starts_with('`'))) {
        return {Kind::Literal, value};
    }
    if (is_own_address(text, " \t\";|&)#")) {
        return {Kind::Literal, kOwnAddress};
    }
    for (const char* const mark : {":-", "-"}) {
        const std::string beginning = "${" + name + mark;
        if (!text.starts_with(beginning)) {
            continue;
        }
        const std::string_view otherwise = text.substr(beginning.size());
        if (is_own_address(otherwise, "}")) {
            return {Kind::Default, kOwnAddress};
        }
        const std::string_view word = otherwise.substr(0, otherwise.find('}'));
        const bool literal = word.find_first_of("$`\"'\\{") == word.npos;
        const bool whole = value == beginning + std::string(word) + "}";
        return {literal && whole ? Kind::Default : Kind::Kept, std::string(word)};
    }
    // A list that is added to.
    return {has(value, "$" + name) || has(value, "${" + name) ? Kind::Kept : Kind::Computed, ""};
}

bool conditional(std::string_view line, std::size_t at) {
    const std::string_view before = line.substr(0, at);
    const auto keyword = {"if ", "then ", "else ", "elif ", "while ", "until ", "for ", "case "};
    // In parentheses, or behind the one of a `case`.
    return has(before, "&&") || has(before, "||") ||
           std::count(before.begin(), before.end(), '(') !=
               std::count(before.begin(), before.end(), ')') ||
           std::any_of(keyword.begin(), keyword.end(),
                       [&](const char* word) { return line.starts_with(word); });
}

}  // namespace deft::tools::doctor
