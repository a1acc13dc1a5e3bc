// SPDX-License-Identifier: Apache-2.0
// From the text of one setting to its value: numbers, suffixes, ranges, words.
#include <locale.h>
#include <stdlib.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>

#include "base/config.h"
#include "base/nearest.h"

namespace deft {
namespace {

struct Suffix {
    std::string_view text;
    std::int64_t factor;
};
constexpr std::int64_t kKi = 1024;
// "KB" is left out on purpose: half of its readers take it for 1000.
constexpr Suffix kByteSuffixes[] = {{"", 1},
                                    {"K", kKi},
                                    {"k", kKi},
                                    {"Ki", kKi},
                                    {"KiB", kKi},
                                    {"M", kKi* kKi},
                                    {"m", kKi* kKi},
                                    {"Mi", kKi* kKi},
                                    {"MiB", kKi* kKi},
                                    {"G", kKi* kKi* kKi},
                                    {"g", kKi* kKi* kKi},
                                    {"Gi", kKi* kKi* kKi},
                                    {"GiB", kKi* kKi* kKi}};
constexpr Suffix kShareSuffixes[] = {{"", 1}, {"%", 1}};
constexpr Suffix kDurationSuffixes[] = {{"", 1'000'000},         {"ns", 1},
                                        {"us", 1'000},           {"ms", 1'000'000},
                                        {"s", 1'000'000'000},    {"min", 60'000'000'000},
                                        {"h", 3'600'000'000'000}};

// The host process may have chosen a locale with a decimal comma: nothing here may depend on it.
//
// A decimal number with an optional sign and suffix; nothing else may follow. `whole` is set when
// it is a whole number that fits, computed without rounding.
struct Number {
    double value = 0;
    std::optional<std::int64_t> whole;
};

std::optional<std::int64_t> factor_of(std::string_view suffix, std::span<const Suffix> suffixes) {
    for (const Suffix& known : suffixes) {
        if (known.text == suffix) {
            return known.factor;
        }
    }
    return std::nullopt;
}

// "0.07s" is 70000000.00000001 ns in binary arithmetic and still means a whole number of them. Not
// std::round: nothing else here needs libm, which costs every preloaded process its loading.
std::optional<std::int64_t> nearly_whole(double value) {
    if (!(std::abs(value) < 9e18)) {
        return std::nullopt;
    }
    const auto rounded = static_cast<std::int64_t>(value + (value < 0 ? -0.5 : 0.5));
    if (std::abs(value - static_cast<double>(rounded)) > 1e-9 * std::abs(value)) {
        return std::nullopt;
    }
    return rounded;
}

std::optional<Number> number(std::string_view text, std::span<const Suffix> suffixes) {
    const bool plus = text.starts_with('+');
    text.remove_prefix(plus ? 1 : 0);
    const std::string_view digits = text.substr(!plus && text.starts_with('-') ? 1 : 0);
    // strtod also reads "inf", "nan" and hexadecimal, which nobody means to write here.
    if (digits.empty() || std::string_view(".0123456789").find(digits.front()) == digits.npos ||
        digits.find_first_of("xX") != digits.npos) {
        return std::nullopt;
    }
    const char* const end = text.data() + text.size();
    std::int64_t integer = 0;
    const auto as_integer = std::from_chars(text.data(), end, integer);
    if (as_integer.ec == std::errc()) {
        const auto factor = factor_of({as_integer.ptr, end}, suffixes);
        std::int64_t product = 0;
        if (factor && !__builtin_mul_overflow(integer, *factor, &product)) {
            return Number{static_cast<double>(product), product};
        }
    }
    // Not from_chars: libstdc++'s for double brings static constructors into the guest.
    static const locale_t c_locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
    const std::string copy(text);
    char* after = nullptr;
    errno = 0;
    const double value = ::strtod_l(copy.c_str(), &after, c_locale);
    const auto factor = factor_of(after, suffixes);
    if (after == copy.c_str() || errno == ERANGE || !factor) {
        return std::nullopt;
    }
    Number result{value * static_cast<double>(*factor), std::nullopt};
    if (!std::isfinite(result.value)) {
        return std::nullopt;
    }
    result.whole = nearly_whole(result.value);
    return result;
}

std::span<const Suffix> suffixes_of(ValueType type) {
    switch (type) {
        case ValueType::Bytes:
            return kByteSuffixes;
        case ValueType::Duration:
            return kDurationSuffixes;
        case ValueType::Choice:
        case ValueType::Bool:
        case ValueType::Integer:
        case ValueType::Real:
        case ValueType::Text:
            break;
    }
    return std::span<const Suffix>(kByteSuffixes, 1);
}

bool in_range(double value, std::string_view range, std::span<const Suffix> suffixes) {
    const auto dots = range.find("..");
    if (dots == range.npos) {
        return true;
    }
    const auto low = number(range.substr(0, dots), suffixes);
    const auto high = number(range.substr(dots + 2), suffixes);
    return (!low || value >= low->value) && (!high || value <= high->value);
}

// The words of "a|b|c".
std::vector<std::string_view> words_of(std::string_view choices) {
    std::vector<std::string_view> words;
    while (!choices.empty()) {
        const auto bar = choices.find('|');
        words.push_back(choices.substr(0, bar));
        choices = bar == choices.npos ? std::string_view() : choices.substr(bar + 1);
    }
    return words;
}

// What people write to switch something off, in any case.
bool means_off(std::string_view text) {
    std::string lower(text);
    for (char& c : lower) {
        c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return lower == "off" || lower == "0" || lower == "no" || lower == "disabled";
}

int choice_index(std::string_view choices, std::string_view word) {
    const std::vector<std::string_view> words = words_of(choices);
    const auto found = std::find(words.begin(), words.end(), word);
    return found == words.end() ? -1 : static_cast<int>(found - words.begin());
}

std::string expects(const Variable& variable, const char* what) {
    std::string line = std::string("expects ") + what;
    if (variable.range[0] != '\0') {
        line += variable.type == ValueType::Choice ? std::string(" ") : std::string(" in ");
        line += variable.range;
    }
    return line;
}

std::string parse_choice(const Variable& variable, std::string_view text, Setting& setting) {
    const int index = choice_index(variable.range, text);
    if (index < 0) {
        return expects(variable, "one of") + did_you_mean(text, words_of(variable.range));
    }
    setting.integer = index;
    return {};
}

// "; did you mean 8G?" of 8GB, whose readers differ; empty: the number is wrong, not its unit.
std::string unit_meant(const Variable& variable, std::string_view text) {
    struct Unit {
        std::string_view written, meant;
    };
    static constexpr Unit kBytes[] = {{"KB", "K"}, {"kB", "k"}, {"kb", "k"}, {"MB", "M"},
                                      {"mb", "M"}, {"GB", "G"}, {"gb", "G"}, {"B", ""}};
    static constexpr Unit kDurations[] = {{"minutes", "min"}, {"mins", "min"},   {"m", "min"},
                                          {"seconds", "s"},   {"secs", "s"},     {"sec", "s"},
                                          {"msec", "ms"},     {"usec", "us"},    {"hours", "h"},
                                          {"hour", "h"},      {"minute", "min"}, {"second", "s"}};
    const bool bytes = variable.type == ValueType::Bytes;
    for (const Unit& unit :
         bytes ? std::span<const Unit>(kBytes) : std::span<const Unit>(kDurations)) {
        const auto digits = text.size() - std::min(text.size(), unit.written.size());
        const std::span<const Suffix> suffixes = suffixes_of(variable.type);
        const std::string meant = std::string(text.substr(0, digits)) + std::string(unit.meant);
        const auto value = text.ends_with(unit.written) ? number(meant, suffixes) : std::nullopt;
        if (value && value->whole && in_range(value->value, variable.range, suffixes)) {
            return "; did you mean " + meant + "?";
        }
    }
    return {};
}

std::string parse_whole(const Variable& variable, std::string_view text, Setting& setting,
                        const char* what) {
    const std::span<const Suffix> suffixes = suffixes_of(variable.type);
    const auto value = number(text, suffixes);
    if (!value || !value->whole || !in_range(value->value, variable.range, suffixes)) {
        const bool unit = variable.type != ValueType::Integer && !value;
        return expects(variable, what) + (unit ? unit_meant(variable, text) : "");
    }
    setting.integer = *value->whole;
    return {};
}

std::string parse_real(const Variable& variable, std::string_view text, Setting& setting) {
    const bool share = std::string_view(variable.unit) == "%";
    const std::span<const Suffix> suffixes =
        share ? std::span<const Suffix>(kShareSuffixes) : suffixes_of(variable.type);
    const auto value = number(text, suffixes);
    if (!value || !in_range(value->value, variable.range, suffixes)) {
        return expects(variable, "a number");
    }
    setting.real = value->value;
    return {};
}

std::string parse_by_type(const Variable& variable, std::string_view text, Setting& setting) {
    switch (variable.type) {
        case ValueType::Text:
            // What is meant for all processes of a job must not depend on a working folder.
            return variable.key == Key::KillFile && !text.empty() && !text.starts_with('/')
                       ? "expects a full path, which begins with /"
                       : "";
        case ValueType::Choice:
            return parse_choice(variable, text, setting);
        case ValueType::Bool:
            if (text != "0" && text != "1") {
                return "expects 0 or 1";
            }
            setting.integer = text == "1";
            return {};
        case ValueType::Integer:
            return parse_whole(variable, text, setting, "a whole number");
        case ValueType::Bytes:
            return parse_whole(variable, text, setting,
                               "a size such as 65536, 64K, 4M, 1G (not 64KB)");
        case ValueType::Duration:
            return parse_whole(variable, text, setting,
                               "a duration such as 200ms, 5s (without a unit: ms)");
        case ValueType::Real:
            return parse_real(variable, text, setting);
    }
    return {};
}

}  // namespace

std::string parse_value(const Variable& variable, std::string_view text, Setting& setting) {
    // A kill switch must not fail for its spelling.
    if (variable.type == ValueType::Choice && variable.key == Key::Mode && means_off(text)) {
        text = "off";
    }
    if (std::string problem = parse_by_type(variable, text, setting); !problem.empty()) {
        return problem;
    }
    setting.text = std::string(text);
    return {};
}

}  // namespace deft
