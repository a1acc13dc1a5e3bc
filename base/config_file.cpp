// SPDX-License-Identifier: Apache-2.0
#include "base/config_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <optional>

#include "base/unique_fd.h"

namespace deft {
namespace {

constexpr std::size_t kMostProblems = 5;
constexpr std::string_view kBlanks = " \t\r\n";

bool blank(char c) {
    return kBlanks.find(c) != kBlanks.npos;
}

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(kBlanks);
    if (first == text.npos) {
        return {};
    }
    return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// "bbr # for a week": as in a shell, a # inside a word is none.
std::string_view without_comment(std::string_view text) {
    for (std::size_t i = 1; i < text.size(); ++i) {
        if (text[i] == '#' && blank(text[i - 1])) {
            return text.substr(0, i);
        }
    }
    return text;
}

// What stands behind "=", blanks included. One pair of quotes around a value is the shell's habit;
// here they only keep a # or blanks at the ends.
std::string_view value_of(std::string_view raw) {
    const std::string_view text = trimmed(raw);
    if (!text.empty() && (text.front() == '"' || text.front() == '\'')) {
        const auto close = text.find(text.front(), 1);
        const std::string_view after = close == text.npos ? text : text.substr(close + 1);
        if (after.empty() || (blank(after.front()) && trimmed(after).starts_with('#'))) {
            return text.substr(1, close - 1);
        }
    }
    return trimmed(without_comment(raw));
}

// Root's files show up as nobody's in a user namespace, where root is none of the users.
bool owned_by_mapped_root(const struct stat& status) {
    constexpr uid_t kOverflow = 65534;
    if (status.st_uid != kOverflow) {
        return false;
    }
    const UniqueFd map(::open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC));
    char text[128] = "";
    unsigned first = 1, outside = 1, count = 0;
    return map && ::read(map.get(), text, sizeof(text) - 1) > 0 &&
           std::sscanf(text, "%u %u %u", &first, &outside, &count) == 3 && count != 4294967295U;
}

// Who may write to the file decides for other people's jobs.
std::string insecurity(const struct stat& status) {
    const bool own = status.st_uid == 0 || status.st_uid == ::geteuid();
    if (!own && !owned_by_mapped_root(status)) {
        return "it belongs to user " + std::to_string(status.st_uid) + "; chown root it";
    }
    if ((status.st_mode & S_IWOTH) != 0) {
        return "everybody may write to it; chmod o-w it";
    }
    if ((status.st_mode & S_IWGRP) != 0 && status.st_gid != 0) {
        return "group " + std::to_string(status.st_gid) + " may write to it; chmod g-w it";
    }
    return {};
}

// Reads a whole configuration file. Returns an empty string, or what is wrong with it; errno is
// then ENOENT or ENOTDIR only if it does not exist.
std::string read_text(const std::string& path, std::string& text, struct stat& status) {
    constexpr std::size_t kLargest = 1 << 20;
    // O_NONBLOCK: a FIFO must not stop the process that this library is a guest of.
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
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

// "a,b[1,2]": at the commas that stand in no brackets.
std::vector<std::string> patterns_of(std::string_view list) {
    std::vector<std::string> patterns(1);
    bool in_brackets = false;
    for (const char c : list) {
        if (c == '[' || c == ']') {
            in_brackets = c == '[';
        }
        if (c == ',' && !in_brackets) {
            patterns.emplace_back();
        } else {
            patterns.back() += c;
        }
    }
    return patterns;
}

// One condition of a section. Nothing: it is none.
std::optional<bool> holds(std::string_view condition, const JobIdentity& job) {
    const auto equals = condition.find('=');
    if (equals == condition.npos || equals + 1 == condition.size()) {
        return std::nullopt;
    }
    const auto trait =
        std::find(std::begin(kJobTraits), std::end(kJobTraits), condition.substr(0, equals));
    if (trait == std::end(kJobTraits)) {
        return std::nullopt;
    }
    const auto patterns = patterns_of(condition.substr(equals + 1));
    const auto which = static_cast<JobTrait>(trait - std::begin(kJobTraits));
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return job.matches(which, pattern); });
}

// Goes through a file line by line.
class Reader {
public:
    Reader(ConfigFile& file, const JobIdentity& job) : file_(file), job_(job) {}

    void read(std::string_view text) {
        if (text.starts_with("\xEF\xBB\xBF")) {  // what some editors put before UTF-8
            text.remove_prefix(3);
        }
        while (!text.empty()) {
            const auto end = text.find('\n');
            ++number_;
            line(trimmed(text.substr(0, end)));
            text = end == text.npos ? std::string_view() : text.substr(end + 1);
        }
        if (untold_ > 0) {
            file_.problems.push_back(file_.shown + ": " + std::to_string(untold_) +
                                     " more lines are wrong; is it the right file?");
        }
    }

private:
    std::string where() const { return file_.shown + ":" + std::to_string(number_); }

    void wrong(const std::string& what) {
        if (file_.problems.size() < kMostProblems) {
            file_.problems.push_back(where() + ": " + what);
        } else {
            ++untold_;
        }
    }

    void line(std::string_view text) {
        if (text.empty() || text.front() == '#') {
            return;
        }
        if (text.front() == '[') {
            section(trimmed(without_comment(text)));
        } else if (applies_) {
            assignment(text);
        }
    }

    // A section that is wrong applies to nobody: its lines were meant for few.
    void section(std::string_view text) {
        section_ = ", section " + shown_text(text);
        applies_ = false;
        if (text.size() < 2 || text.back() != ']') {
            wrong("expects [host=PATTERN], found '" + shown_text(text) + "'");
            return;
        }
        std::string_view rest = trimmed(text.substr(1, text.size() - 2));
        if (rest == "*") {
            section_.clear();
            applies_ = true;
            return;
        }
        bool all = true;
        bool known = !rest.empty();
        while (!rest.empty()) {
            const auto end = std::min(rest.find_first_of(kBlanks), rest.size());
            const std::optional<bool> one = holds(rest.substr(0, end), job_);
            known = known && one.has_value();
            all = all && one.value_or(false);
            rest = trimmed(rest.substr(end));
        }
        if (!known) {
            wrong(
                "a section is [*] or names host, partition, user or executable, each with "
                "patterns: [host=node*,gpu1 user=alice]; found '" +
                shown_text(text) + "', whose lines are ignored");
            return;
        }
        applies_ = all;
    }

    void assignment(std::string_view text) {
        const auto equals = text.find('=');
        std::string_view name = trimmed(text.substr(0, equals));
        if (equals == text.npos || name.empty() || name.find_first_of(" \t#") != name.npos) {
            wrong("expects NAME=value, found '" + shown_text(text) + "'");
            return;
        }
        ConfigLine line;
        line.written = name;
        line.origin = where() + section_;
        line.value = value_of(text.substr(equals + 1));
        if (name == "kill") {
            line.kind = ConfigLine::Kind::Force;
            name = "DEFT_KILL_FILE";
        } else if (name == "ceiling") {
            line.kind = ConfigLine::Kind::Ceiling;
            name = "DEFT_MODE";
        } else if (name.starts_with("force.")) {
            line.kind = ConfigLine::Kind::Force;
            name.remove_prefix(6);
        } else if (name.starts_with("ceiling.")) {
            line.kind = ConfigLine::Kind::Ceiling;
            name.remove_prefix(8);
        }
        line.name = name;
        if (name.empty()) {
            wrong("expects a variable behind '" + line.written + "'");
        } else if (name == "DEFT_CONF") {
            wrong("DEFT_CONF has a meaning in the environment only");
        } else if (line.kind != ConfigLine::Kind::Set && !file_.insecure.empty()) {
            wrong("'" + shown_text(text) +
                  "' counts for nothing, because of the file: " + file_.insecure);
        } else {
            file_.lines.push_back(std::move(line));
        }
    }

    ConfigFile& file_;
    const JobIdentity& job_;
    int number_ = 0;
    std::size_t untold_ = 0;
    bool applies_ = true;
    std::string section_;
};

}  // namespace

std::string shown_text(std::string_view text) {
    constexpr std::size_t kLongest = 120;
    std::string line;
    for (const char c : text.substr(0, kLongest)) {
        line += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
    }
    return text.size() > kLongest ? line + "..." : line;
}

ConfigFile read_config_file(const std::string& path, const JobIdentity& job, bool binding) {
    ConfigFile file;
    file.shown = shown_text(path);
    std::string text;
    struct stat status {};
    file.error = read_text(path, text, status);
    if (!file.error.empty()) {
        // A link that leads nowhere is somebody's mistake.
        const bool missing = errno == ENOENT || errno == ENOTDIR;
        file.absent = missing && ::lstat(path.c_str(), &status) != 0;
        return file;
    }
    file.insecure = binding ? insecurity(status) : "";
    Reader(file, job).read(text);
    return file;
}

}  // namespace deft
