// SPDX-License-Identifier: Apache-2.0
// Settings of this process: the table of config_table.def with a value for each variable.
//
// Precedence: default < /etc/deft/deft.conf < the file named by DEFT_CONF < the environment. A
// variable that is absent takes its default; one that is present and wrong is a problem the caller
// must act on (the plugin fails its init, the shim warns and turns off), never a silent default.
//
// A file may also force values, which then beat the environment, and cap them: config_file.h. What
// the system file forces and caps, nothing that a user sets can undo, but DEFT_DISABLE.
//
// The system file is the operator's and is read by every job of a host. A mistake in it stops no
// job: a line that is wrong is ignored, ignored_lines(). Where it was to set the mode, or the file
// cannot be read, DEFT_MODE is off, whoever set it to what, and central_problem() says why.
// Texts have grammars that this folder does not know: a TextCheck does. DEFT_DISABLE switches off
// whatever else is set, and then no setting can be wrong.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deft {

enum class ValueType { Choice, Bool, Integer, Bytes, Duration, Real, Text };
enum class VariableGroup { Operator, Debug };
enum class ValueSource { Default, SystemFile, UserFile, Environment };
// Whether somebody else might have set another value.
enum class ValueHold { Free, Forced, Capped };

enum class Key {
#define DEFT_VARIABLE(key, ...) key,
#include "base/config_table.def"
#undef DEFT_VARIABLE
};

// One row of the table. All strings are literals.
struct Variable {
    Key key;
    const char* name;
    ValueType type;
    const char* unit;
    const char* default_text;
    const char* range;
    VariableGroup group;
    const char* since;
    const char* doc;
};

// The file every process reads first, if it is there.
inline constexpr char kSystemConfigFile[] = "/etc/deft/deft.conf";

std::span<const Variable> variables();
const Variable& variable(Key key);

// A variable's value as it stands, and where it came from.
struct Setting {
    std::string text;  // as written by the user, or the default
    ValueSource source = ValueSource::Default;
    ValueHold hold = ValueHold::Free;
    // "environment", "/etc/deft/deft.conf:12, section [host=a*]", "default", "forced by
    // /etc/deft/deft.conf:3", "capped by /etc/deft/deft.conf:4; deft, environment".
    std::string origin;
    std::int64_t integer = 0;  // Choice: index into range; Bool; Integer; Bytes; Duration: ns
    double real = 0;           // Real
};

class Config;

// What is wrong with a setting that is a text to the table; an empty line: nothing.
struct TextProblem {
    Key key;
    std::string line;
};
// Looks at the texts as they stand. Must not use Config::process(), nor log.
using TextCheck = std::vector<TextProblem> (*)(const Config&);

// The check of Config::process(). Only the preloaded half knows the grammars and defines it; in a
// program without that half, texts go unchecked.
[[gnu::weak]] std::vector<TextProblem> process_text_problems(const Config& config);

class Config {
public:
    // Reads nothing but what is given. `environment` is a list of "NAME=value"; `system_file` may
    // be absent. Never throws for bad input: see problems(). With `check`, a line of the system
    // file whose text holds and is wrong is ignored; the texts of others are not looked at.
    // `command`: its words, where the settings are those of a command that is to be started.
    static Config load(std::span<const char* const> environment, const std::string& system_file,
                       TextCheck check = nullptr, const std::vector<std::string>& command = {});

    // The settings of this process: loaded at the first call, from the real environment, then
    // fixed. Thread-safe. Does not allocate after the first call.
    static const Config& process();

    const Setting& setting(Key key) const { return settings_[static_cast<std::size_t>(key)]; }
    const std::string& text(Key key) const { return setting(key).text; }
    bool flag(Key key) const { return setting(key).integer != 0; }
    std::int64_t integer(Key key) const { return setting(key).integer; }
    double real(Key key) const { return setting(key).real; }
    std::chrono::nanoseconds duration(Key key) const {
        return std::chrono::nanoseconds(integer(key));
    }
    // The chosen word of a Choice variable compared with one of its words.
    bool is(Key key, std::string_view word) const { return text(key) == word; }

    // Values that are present and wrong, one clear line each (name, value, where, what is allowed).
    // A wrong value leaves its setting at the default. Empty when all is well. Not those of the
    // system file.
    std::span<const std::string> problems() const { return problems_; }
    // What makes deft stay out of the job that is wrong with the system file, in one line; empty:
    // nothing, or there is none.
    const std::string& central_problem() const { return central_problem_; }
    // Lines of the system file that are wrong and count for nothing, one clear line each.
    std::span<const std::string> ignored_lines() const { return ignored_lines_; }
    // DEFT_JOB_ID, or what the launcher calls the job; empty: neither.
    const std::string& job_id() const { return job_id_; }
    // DEFT_CANARY could not be decided, because the job has no id yet: DEFT_MODE is off for that.
    bool canary_undecided() const { return canary_undecided_; }
    // Values of the user's that gave way to one that is forced, or to a ceiling, one line each.
    std::span<const std::string> overruled() const { return overruled_; }
    // Unknown DEFT_* names, with the nearest known one. Not fatal.
    std::span<const std::string> warnings() const { return warnings_; }

private:
    std::vector<Setting> settings_;
    std::vector<std::string> problems_;
    std::vector<std::string> warnings_;
    std::string central_problem_;
    std::vector<std::string> ignored_lines_;
    std::vector<std::string> overruled_;
    bool canary_undecided_ = false;
    std::string job_id_;

    friend class ConfigLoader;
    Setting& at(const Variable& variable) {
        return settings_[static_cast<std::size_t>(variable.key)];
    }
    void assign_default(const Variable& variable);
    void switch_off(ValueSource source, const std::string& origin);
};

// Parses `text` as the variable demands into `setting` (text, integer, real). Returns an empty
// string, or what is wrong ("expects 100ms..1h").
std::string parse_value(const Variable& variable, std::string_view text, Setting& setting);

// Replaces %h (host name), %r (rank), %p (process id), %j (id of the job), %% in a file name
// pattern. Of an id, what may not stand in a file's name becomes "_", and 64 bytes are used. Of a
// job without one, %j and a "-" that follows it go.
std::string expand_pattern(std::string_view pattern, int rank, std::string_view job = {});

}  // namespace deft
