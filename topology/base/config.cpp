// SPDX-License-Identifier: Apache-2.0
#include "topology/base/config.h"

#include <unistd.h>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>

#include "topology/base/nearest.h"

extern "C" char** environ;

namespace deft {
namespace {

constexpr std::array kVariables = {
#define DEFT_VARIABLE(key, name, type, unit, def, range, group, since, doc) \
    Variable{Key::key, name, ValueType::type, unit, def, range, VariableGroup::group, since, doc},
#include "topology/base/config_table.def"
#undef DEFT_VARIABLE
};

std::string_view trimmed(std::string_view text) {
    const auto blank = " \t\r\n";
    const auto first = text.find_first_not_of(blank);
    if (first == text.npos) {
        return {};
    }
    return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

struct Suffix {
    std::string_view text;
    double factor;
};
constexpr Suffix kByteSuffixes[] = {
    {"", 1}, {"K", 1024.0}, {"M", 1024.0 * 1024}, {"G", 1024.0 * 1024 * 1024}};
constexpr Suffix kDurationSuffixes[] = {{"", 1e6},  {"ns", 1},     {"us", 1e3},  {"ms", 1e6},
                                        {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}};

// A non-negative or signed decimal with an optional suffix; nothing else may follow.
std::optional<double> number(std::string_view text, std::span<const Suffix> suffixes) {
    const std::string copy(text);
    char* end = nullptr;
    errno = 0;
    // strtod also reads hexadecimal, "inf" and "nan", which nobody means to write here.
    if (copy.empty() || copy.find_first_not_of("+-.0123456789eE"
                                               "KMGnumsih") != copy.npos) {
        return std::nullopt;
    }
    const double value = std::strtod(copy.c_str(), &end);
    if (end == copy.c_str() || errno == ERANGE || !std::isfinite(value)) {
        return std::nullopt;
    }
    for (const Suffix& suffix : suffixes) {
        if (suffix.text == end) {
            return value * suffix.factor;
        }
    }
    return std::nullopt;
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
    return (!low || value >= *low) && (!high || value <= *high);
}

// Index of `word` in "a|b|c", or -1.
int choice_index(std::string_view choices, std::string_view word) {
    for (int index = 0; !choices.empty(); ++index) {
        const auto bar = choices.find('|');
        if (choices.substr(0, bar) == word) {
            return index;
        }
        choices = bar == choices.npos ? std::string_view() : choices.substr(bar + 1);
    }
    return -1;
}

std::string expects(const Variable& variable, const char* what) {
    std::string line = std::string("expects ") + what;
    if (variable.range[0] != '\0') {
        line += variable.type == ValueType::Choice ? std::string(" ") : std::string(" in ");
        line += variable.range;
    }
    return line;
}

}  // namespace

std::span<const Variable> variables() {
    return kVariables;
}

const Variable& variable(Key key) {
    return kVariables[static_cast<std::size_t>(key)];
}

std::string parse_value(const Variable& variable, std::string_view text, Setting& setting) {
    const std::span<const Suffix> suffixes = suffixes_of(variable.type);
    switch (variable.type) {
        case ValueType::Text:
            break;
        case ValueType::Choice: {
            const int index = choice_index(variable.range, text);
            if (index < 0) {
                return expects(variable, "one of");
            }
            setting.integer = index;
            break;
        }
        case ValueType::Bool:
            if (text != "0" && text != "1") {
                return "expects 0 or 1";
            }
            setting.integer = text == "1";
            break;
        case ValueType::Integer:
        case ValueType::Bytes:
        case ValueType::Duration: {
            const auto value = number(text, suffixes);
            if (!value || std::abs(*value) > 9e18 || *value != std::floor(*value) ||
                !in_range(*value, variable.range, suffixes)) {
                return expects(variable, variable.type == ValueType::Integer ? "a whole number"
                                         : variable.type == ValueType::Bytes
                                             ? "a size such as 65536, 64K, 4M, 1G"
                                             : "a duration such as 200ms, 5s");
            }
            setting.integer = static_cast<std::int64_t>(*value);
            break;
        }
        case ValueType::Real: {
            const auto value = number(text, suffixes);
            if (!value || !in_range(*value, variable.range, suffixes)) {
                return expects(variable, "a number");
            }
            setting.real = *value;
            break;
        }
    }
    setting.text = std::string(text);
    return {};
}

void Config::assign(std::string_view name, std::string_view value, ValueSource source,
                    const std::string& origin) {
    for (const Variable& variable : kVariables) {
        if (name != variable.name) {
            continue;
        }
        Setting& target = settings_[static_cast<std::size_t>(variable.key)];
        Setting parsed = target;
        // An empty environment variable means "not set", as NCCL and the shells' users expect.
        if (value.empty() && variable.type != ValueType::Text) {
            return;
        }
        const std::string wrong = parse_value(variable, value, parsed);
        if (!wrong.empty()) {
            problems_.push_back(std::string(name) + "='" + std::string(value) + "' (" + origin +
                                "): " + wrong);
            return;
        }
        parsed.source = source;
        parsed.origin = origin;
        target = parsed;
        return;
    }
    std::vector<std::string_view> names;
    for (const Variable& variable : kVariables) {
        names.emplace_back(variable.name);
    }
    std::string line = "unknown variable " + std::string(name) + " (" + origin + ")";
    const std::string_view guess = nearest(name, names);
    if (!guess.empty()) {
        line += "; did you mean " + std::string(guess) + "?";
    } else {
        line += "; `deft env` lists the known ones";
    }
    warnings_.push_back(line);
}

void Config::read_file(const std::string& path, ValueSource source, bool must_exist) {
    std::FILE* file = std::fopen(path.c_str(), "re");
    if (file == nullptr) {
        if (must_exist || errno != ENOENT) {
            problems_.push_back("cannot read " + path + ": " + std::strerror(errno));
        }
        return;
    }
    char* line = nullptr;
    std::size_t capacity = 0;
    int number_of_line = 0;
    while (::getline(&line, &capacity, file) > 0) {
        ++number_of_line;
        std::string_view text = trimmed(line);
        if (text.empty() || text.front() == '#') {
            continue;
        }
        const std::string origin = path + ":" + std::to_string(number_of_line);
        const auto equals = text.find('=');
        if (equals == text.npos) {
            problems_.push_back(origin + ": expects NAME=value, found '" + std::string(text) + "'");
            continue;
        }
        const std::string_view name = trimmed(text.substr(0, equals));
        if (name == variable(Key::Conf).name) {
            problems_.push_back(origin + ": DEFT_CONF has a meaning in the environment only");
            continue;
        }
        assign(name, trimmed(text.substr(equals + 1)), source, origin);
    }
    const bool failed = std::ferror(file) != 0;
    std::free(line);
    std::fclose(file);
    if (failed) {
        problems_.push_back("cannot read " + path + ": is it a regular file?");
    }
}

Config Config::load(std::span<const char* const> environment, const std::string& system_file) {
    Config config;
    config.settings_.resize(kVariables.size());
    for (const Variable& variable : kVariables) {
        Setting& setting = config.settings_[static_cast<std::size_t>(variable.key)];
        setting.origin = "default";
        parse_value(variable, variable.default_text, setting);
    }
    config.read_file(system_file, ValueSource::SystemFile, false);
    const std::string conf_prefix = std::string(variable(Key::Conf).name) + "=";
    for (const char* entry : environment) {
        const std::string_view text(entry);
        if (text.starts_with(conf_prefix) && text.size() > conf_prefix.size()) {
            config.read_file(std::string(text.substr(conf_prefix.size())), ValueSource::UserFile,
                             true);
        }
    }
    for (const char* entry : environment) {
        const std::string_view text(entry);
        const auto equals = text.find('=');
        if (text.starts_with("DEFT_") && equals != text.npos) {
            config.assign(text.substr(0, equals), text.substr(equals + 1), ValueSource::Environment,
                          "environment");
        }
    }
    return config;
}

const Config& Config::process() {
    // Leaked on purpose: NCCL threads may still read settings while the process runs its
    // destructors.
    static const Config* const config = [] {
        std::size_t count = 0;
        while (environ != nullptr && environ[count] != nullptr) {
            ++count;
        }
        return new Config(
            load(std::span<const char* const>(environ, count), kSystemConfigFile));
    }();
    return *config;
}

std::string expand_pattern(std::string_view pattern, int rank) {
    std::string name;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
        switch (next) {
            case 'h': {
                char host[256] = "";
                ::gethostname(host, sizeof(host) - 1);
                name += host;
                break;
            }
            case 'r':
                name += std::to_string(rank);
                break;
            case 'p':
                name += std::to_string(::getpid());
                break;
            case '%':
                name += '%';
                break;
            default:
                name += pattern[i];
                continue;
        }
        ++i;
    }
    return name;
}

}  // namespace deft
