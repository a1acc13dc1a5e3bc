// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/nearest.h"
#include "base/unique_fd.h"

extern "C" char** environ;

namespace deft {
namespace {

constexpr std::array kVariables = {
#define DEFT_VARIABLE(key, name, type, unit, def, range, group, since, doc) \
    Variable{Key::key, name, ValueType::type, unit, def, range, VariableGroup::group, since, doc},
#include "base/config_table.def"
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

// `text` fit for one line of a message: no control characters, not endless.
std::string shown(std::string_view text) {
    constexpr std::size_t kLongest = 120;
    std::string line;
    for (const char c : text.substr(0, kLongest)) {
        line += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
    }
    return text.size() > kLongest ? line + "..." : line;
}

// "bbr # for a week", "# not now".
bool has_comment(std::string_view value) {
    for (std::size_t i = 0; i < value.size(); ++i) {
        if (value[i] == '#' && (i == 0 || value[i - 1] == ' ' || value[i - 1] == '\t')) {
            return true;
        }
    }
    return false;
}

constexpr std::size_t kMostProblemsOfAFile = 5;

// What environment modules and build tools set for a package of this name: none of ours.
constexpr std::array kPackageVariables = {"DEFT_HOME",   "DEFT_ROOT",    "DEFT_DIR", "DEFT_BASE",
                                          "DEFT_PREFIX", "DEFT_VERSION", "DEFT_LIB", "DEFT_INC"};

// Reads a whole configuration file. Returns an empty string, or what is wrong with it; errno is
// then ENOENT or ENOTDIR only if it does not exist.
std::string read_text_file(const std::string& path, std::string& text) {
    constexpr std::size_t kLargest = 1 << 20;
    // O_NONBLOCK: a FIFO must not stop the process that this library is a guest of.
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) {
        return std::strerror(errno);
    }
    errno = 0;
    if (!S_ISREG(status.st_mode)) {
        return "not a regular file";
    }
    char block[4096];
    for (;;) {
        const ssize_t size = ::read(fd.get(), block, sizeof(block));
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size < 0) {
            return std::strerror(errno);
        }
        if (size == 0) {
            break;
        }
        text.append(block, static_cast<std::size_t>(size));
        if (text.size() > kLargest) {
            return "larger than 1 MiB; is it the right file?";
        }
    }
    return text.find('\0') == text.npos ? "" : "not a text file";
}

}  // namespace

std::span<const Variable> variables() {
    return kVariables;
}

const Variable& variable(Key key) {
    return kVariables[static_cast<std::size_t>(key)];
}

void Config::assign(std::string_view name, std::string_view value, ValueSource source,
                    const std::string& origin) {
    for (const Variable& variable : kVariables) {
        if (name != variable.name) {
            continue;
        }
        Setting& target = settings_[static_cast<std::size_t>(variable.key)];
        Setting parsed = target;
        // Empty means "not set", as NCCL and the shells' users expect. For a text it is also how
        // one takes back what a file says, most texts being empty by default.
        if (value.empty()) {
            if (variable.type == ValueType::Text) {
                target = Setting{};
                target.text = variable.default_text;
                target.origin = "default";
            }
            return;
        }
        const std::string wrong = parse_value(variable, value, parsed);
        if (!wrong.empty()) {
            problems_.push_back(std::string(name) + "='" + shown(value) + "' (" + origin +
                                "): " + wrong);
            return;
        }
        parsed.source = source;
        parsed.origin = origin;
        target = parsed;
        return;
    }
    const bool of_package = std::find(kPackageVariables.begin(), kPackageVariables.end(), name) !=
                            kPackageVariables.end();
    if (of_package) {
        return;
    }
    std::vector<std::string_view> names;
    for (const Variable& variable : kVariables) {
        names.emplace_back(variable.name);
    }
    const std::string guess = did_you_mean(name, names);
    warnings_.push_back("unknown variable " + shown(name) + " (" + origin + ")" +
                        (guess.empty() ? "; `deft env` lists the known ones" : guess));
}

void Config::read_line(std::string_view text, ValueSource source, const std::string& origin) {
    if (text.empty() || text.front() == '#') {
        return;
    }
    const auto equals = text.find('=');
    const std::string_view name = trimmed(text.substr(0, equals));
    if (equals == text.npos || name.empty() || name.find_first_of(" \t") != name.npos) {
        problems_.push_back(origin + ": expects NAME=value, found '" + shown(text) + "'");
        return;
    }
    if (name == variable(Key::Conf).name) {
        problems_.push_back(origin + ": DEFT_CONF has a meaning in the environment only");
        return;
    }
    std::string_view value = trimmed(text.substr(equals + 1));
    // One pair of quotes around a value is the shell habit; here it has no other meaning.
    const bool quoted = value.size() >= 2 && value.front() == value.back() &&
                        (value.front() == '"' || value.front() == '\'') &&
                        value.find(value.front(), 1) == value.size() - 1;
    // A number or a word would be wrong with it, a text would take it in.
    if (!quoted && has_comment(value)) {
        problems_.push_back(origin + ": '" + shown(value) + "' holds a comment, which needs a " +
                            "line of its own; a value with blanks and # stands in quotes");
        return;
    }
    assign(name, quoted ? value.substr(1, value.size() - 2) : value, source, origin);
}

void Config::read_file(const std::string& path, ValueSource source, bool must_exist) {
    std::string text;
    const std::string error = read_text_file(path, text);
    if (!error.empty()) {
        // A link that leads nowhere is somebody's mistake.
        struct stat status {};
        const bool absent =
            (errno == ENOENT || errno == ENOTDIR) && ::lstat(path.c_str(), &status) != 0;
        if (must_exist) {
            problems_.push_back("DEFT_CONF='" + shown(path) + "' (environment): " + error);
        } else if (!absent) {
            problems_.push_back("cannot read " + shown(path) + ": " + error);
        }
        return;
    }
    std::string_view rest = text;
    if (rest.starts_with("\xEF\xBB\xBF")) {  // what some editors put before UTF-8
        rest.remove_prefix(3);
    }
    const std::size_t earlier_problems = problems_.size();
    for (int line = 1; !rest.empty(); ++line) {
        const auto end = rest.find('\n');
        read_line(trimmed(rest.substr(0, end)), source, shown(path) + ":" + std::to_string(line));
        rest = end == rest.npos ? std::string_view() : rest.substr(end + 1);
        if (problems_.size() - earlier_problems >= kMostProblemsOfAFile) {
            problems_.push_back(shown(path) + ": more lines are wrong; is it the right file?");
            return;
        }
    }
}

// A mistake of the operator's must not stop every job of the fleet. Which of the lines is right
// nobody can tell: none of them holds. An unknown name counts, it may be a misspelt kill switch.
void Config::read_system_file(const std::string& path) {
    read_file(path, ValueSource::SystemFile, false);
    std::vector<std::string> wrong = std::move(problems_);
    wrong.insert(wrong.end(), warnings_.begin(), warnings_.end());
    problems_.clear();
    warnings_.clear();
    distrust_system_file(wrong);
}

// A text that the user sets in the place of the file's is not looked at here.
void Config::check_system_texts(TextCheck check) {
    std::vector<std::string> wrong;
    for (const TextProblem& problem : check(*this)) {
        if (!problem.line.empty() && setting(problem.key).source == ValueSource::SystemFile) {
            wrong.push_back(problem.line);
        }
    }
    distrust_system_file(wrong);
}

// With anything wrong, takes back whatever holds because of the file.
void Config::distrust_system_file(const std::vector<std::string>& wrong) {
    if (wrong.empty()) {
        return;
    }
    central_problem_ = wrong.front();
    if (wrong.size() > 1) {
        central_problem_ += " (" + std::to_string(wrong.size() - 1) + " more)";
    }
    for (const Variable& variable : kVariables) {
        if (setting(variable.key).source == ValueSource::SystemFile) {
            assign_default(variable);
        }
    }
}

void Config::assign_default(const Variable& variable) {
    Setting& setting = settings_[static_cast<std::size_t>(variable.key)];
    setting = Setting{};
    setting.origin = "default";
    parse_value(variable, variable.default_text, setting);
}

void Config::switch_off(ValueSource source, const std::string& origin) {
    Setting& mode = settings_[static_cast<std::size_t>(Key::Mode)];
    mode = Setting{};
    parse_value(variable(Key::Mode), "off", mode);
    mode.source = source;
    mode.origin = origin;
}

Config Config::load(std::span<const char* const> environment, const std::string& system_file,
                    TextCheck check) {
    Config config;
    config.settings_.resize(kVariables.size());
    for (const Variable& variable : kVariables) {
        config.assign_default(variable);
    }
    config.read_system_file(system_file);
    const std::string conf_prefix = std::string(variable(Key::Conf).name) + "=";
    for (const char* entry : environment) {
        const std::string_view text(entry);
        if (text.starts_with(conf_prefix)) {
            if (text.size() > conf_prefix.size()) {
                config.read_file(std::string(text.substr(conf_prefix.size())),
                                 ValueSource::UserFile, true);
            }
            break;
        }
    }
    // A name that occurs twice counts once, where getenv() finds it: at its first place.
    std::vector<std::string_view> seen;
    for (const char* entry : environment) {
        const std::string_view text(entry);
        const auto equals = text.find('=');
        const std::string_view name = text.substr(0, equals);
        if (name.starts_with("DEFT_") && equals != text.npos &&
            std::find(seen.begin(), seen.end(), name) == seen.end()) {
            seen.push_back(name);
            config.assign(name, text.substr(equals + 1), ValueSource::Environment, "environment");
        }
    }
    const Setting& disable = config.setting(Key::Disable);
    if (!disable.text.empty()) {
        config.switch_off(disable.source, "DEFT_DISABLE, " + disable.origin);
        config.problems_.clear();
        config.warnings_.clear();
        config.central_problem_.clear();
        return config;
    }
    if (check != nullptr && !config.is(Key::Mode, "off")) {
        config.check_system_texts(check);
    }
    if (!config.central_problem_.empty()) {
        config.switch_off(ValueSource::SystemFile, shown(system_file) + ", which is wrong");
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
        return new Config(load(std::span<const char* const>(environ, count), kSystemConfigFile,
                               process_text_problems));
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
