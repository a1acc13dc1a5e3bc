// SPDX-License-Identifier: Apache-2.0
#include "base/config_loader.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/nearest.h"
#include "base/sha256.h"

namespace deft {
namespace {

// What environment modules and build tools set for a package of this name: none of ours.
constexpr std::array kPackageVariables = {"DEFT_HOME",   "DEFT_ROOT",    "DEFT_DIR", "DEFT_BASE",
                                          "DEFT_PREFIX", "DEFT_VERSION", "DEFT_LIB", "DEFT_INC"};

const Variable* find_variable(std::string_view name) {
    const auto all = variables();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Variable& row) { return name == row.name; });
    return found == all.end() ? nullptr : &*found;
}

std::string unknown(std::string_view name, const std::string& origin) {
    std::vector<std::string_view> names = {"ceiling", "kill"};
    for (const Variable& variable : variables()) {
        names.emplace_back(variable.name);
    }
    const std::string guess = did_you_mean(name, names);
    return "unknown variable " + shown_text(name) + " (" + origin + ")" +
           (guess.empty() ? "; `deft env` lists the known ones" : guess);
}

// "DEFT_MODE='of' (environment): ", to which a complaint is added.
std::string blamed(std::string_view name, std::string_view value, const std::string& origin) {
    return std::string(name) + "='" + shown_text(value) + "' (" + origin + "): ";
}

// Of Choices only the mode's words stand in an order.
bool has_order(const Variable& variable) {
    switch (variable.type) {
        case ValueType::Integer:
        case ValueType::Bytes:
        case ValueType::Duration:
        case ValueType::Real:
            return true;
        case ValueType::Choice:
        case ValueType::Bool:
        case ValueType::Text:
            break;
    }
    return variable.key == Key::Mode;
}

// Below which share a job is taken, from 0 to 100: the same wherever it is asked.
double lot_of(const std::string& id) {
    Sha256 hash;
    hash.add(std::as_bytes(std::span(std::string_view("deft canary "))));
    hash.add(std::as_bytes(std::span(id)));
    const Sha256Digest digest = hash.finish();
    std::uint32_t number = 0;
    for (std::size_t i = 0; i < sizeof(number); ++i) {
        number = number << 8 | std::to_integer<std::uint32_t>(digest[i]);
    }
    return number / 4294967296.0 * 100;
}

bool exceeds(const Variable& variable, const Setting& value, const Setting& ceiling) {
    return variable.type == ValueType::Real ? value.real > ceiling.real
                                            : value.integer > ceiling.integer;
}

}  // namespace

ConfigLoader::ConfigLoader(const JobIdentity& job, std::span<const char* const> environment,
                           const std::string& system_file)
    : environment_(environment),
      launched_as_(job.id()),
      system_(read_config_file(system_file, job, true)) {
    if (const std::string_view path = job.variable(variable(Key::Conf).name); !path.empty()) {
        user_ = read_config_file(std::string(path), job, false);
    }
}

Config ConfigLoader::load() const {
    Config config = attempt(true);
    if (!config.central_problem_.empty()) {
        // A mistake of the operator's must not stop every job of the fleet, and a misspelt kill
        // switch must not let deft go on. No other line of the file holds then, DEFT_REQUIRE least
        // of all.
        std::string why = std::move(config.central_problem_);
        config = attempt(false);
        if (!config.text(Key::Disable).empty()) {
            return config;
        }
        config.central_problem_ = std::move(why);
        config.switch_off(ValueSource::SystemFile, system_.shown + ", which is wrong");
    }
    return config;
}

Config ConfigLoader::attempt(bool with_system) const {
    Config config;
    config.settings_.resize(variables().size());
    for (const Variable& variable : variables()) {
        config.assign_default(variable);
    }
    if (with_system && !system_.error.empty() && !system_.absent) {
        config.central_problem_ = "cannot read " + system_.shown + ": " + system_.error;
        return config;
    }
    const auto with = [&](ConfigLine::Kind kind) {
        if (user_) {
            apply_user(kind, config);
        }
        if (with_system) {
            apply_system(kind, config);
        }
    };
    if (with_system) {
        config.ignored_lines_ = system_.problems;
        apply_system(ConfigLine::Kind::Set, config);
    }
    if (user_) {
        config.problems_ = user_->problems;
        if (!user_->error.empty()) {
            config.problems_.push_back(
                blamed(variable(Key::Conf).name, user_->shown, "environment") + user_->error);
        }
        apply_user(ConfigLine::Kind::Set, config);
    }
    apply_environment(config);
    with(ConfigLine::Kind::Force);
    config.job_id_ = config.text(Key::JobId).empty() ? launched_as_.value : config.text(Key::JobId);
    draw_canary(config);
    with(ConfigLine::Kind::Ceiling);
    const Setting& disable = config.setting(Key::Disable);
    if (!disable.text.empty()) {
        config.switch_off(disable.source, "DEFT_DISABLE, " + disable.origin);
        config.problems_.clear();
        config.warnings_.clear();
        config.central_problem_.clear();
        config.ignored_lines_.clear();
        config.overruled_.clear();
    }
    return config;
}

// Of lines that set, a later one simply replaces an earlier one. What is forced or capped is so
// once, by the last line that is right; the others are only looked at.
std::vector<ConfigLoader::Refused> ConfigLoader::apply_all(const std::vector<ConfigLine>& lines,
                                                           ConfigLine::Kind kind,
                                                           ValueSource source,
                                                           Config& config) const {
    std::vector<const ConfigLine*> ordered;
    for (const ConfigLine& line : lines) {
        if (line.kind == kind && !dropped(line)) {
            ordered.push_back(&line);
        }
    }
    if (kind != ConfigLine::Kind::Set) {
        std::reverse(ordered.begin(), ordered.end());
    }
    std::vector<Refused> refused;
    std::vector<std::string_view> done;
    for (const ConfigLine* const line : ordered) {
        const bool over = kind != ConfigLine::Kind::Set &&
                          std::find(done.begin(), done.end(), line->name) != done.end();
        Config scratch = over ? config : Config();
        Fault fault = apply(*line, source, over ? scratch : config);
        if (fault.line.empty()) {
            done.push_back(line->name);
        } else {
            refused.push_back({line, std::move(fault)});
        }
    }
    return refused;
}

void ConfigLoader::apply_system(ConfigLine::Kind kind, Config& config) const {
    for (Refused& each : apply_all(system_.lines, kind, ValueSource::SystemFile, config)) {
        const bool mode = !each.fault.unknown && each.line->name == variable(Key::Mode).name;
        if (mode && config.central_problem_.empty()) {
            config.central_problem_ = std::move(each.fault.line);
        } else {
            config.ignored_lines_.push_back(std::move(each.fault.line));
        }
    }
    if (kind == ConfigLine::Kind::Set) {
        for (const Dropped& each : dropped_) {
            config.ignored_lines_.push_back(each.problem);
        }
    }
}

void ConfigLoader::apply_user(ConfigLine::Kind kind, Config& config) const {
    for (Refused& each : apply_all(user_->lines, kind, ValueSource::UserFile, config)) {
        (each.fault.unknown ? config.warnings_ : config.problems_)
            .push_back(std::move(each.fault.line));
    }
}

void ConfigLoader::apply_environment(Config& config) const {
    // A name that occurs twice counts once, where getenv() finds it: at its first place.
    std::vector<std::string_view> seen;
    for (const char* const entry : environment_) {
        const std::string_view text(entry);
        const auto equals = text.find('=');
        const std::string_view name = text.substr(0, equals);
        if (!name.starts_with("DEFT_") || equals == text.npos ||
            std::find(seen.begin(), seen.end(), name) != seen.end()) {
            continue;
        }
        seen.push_back(name);
        Fault fault =
            assign(name, text.substr(equals + 1), ValueSource::Environment, "environment", config);
        if (!fault.line.empty()) {
            (fault.unknown ? config.warnings_ : config.problems_).push_back(fault.line);
        }
    }
}

ConfigLoader::Fault ConfigLoader::apply(const ConfigLine& line, ValueSource source,
                                        Config& config) {
    switch (line.kind) {
        case ConfigLine::Kind::Set:
            return assign(line.name, line.value, source, line.origin, config);
        case ConfigLine::Kind::Force:
            return force(line, source, config);
        case ConfigLine::Kind::Ceiling:
            return cap(line, config);
    }
    return {};
}

ConfigLoader::Fault ConfigLoader::assign(std::string_view name, std::string_view value,
                                         ValueSource source, const std::string& origin,
                                         Config& config) {
    const Variable* const row = find_variable(name);
    if (row == nullptr) {
        const bool of_package = std::find(kPackageVariables.begin(), kPackageVariables.end(),
                                          name) != kPackageVariables.end();
        return of_package ? Fault{} : Fault{true, unknown(name, origin)};
    }
    Setting& target = config.at(*row);
    // Empty means "not set", as NCCL and the shells' users expect. For a text it is also how one
    // takes back what a file says, most texts being empty by default.
    if (value.empty()) {
        if (row->type == ValueType::Text) {
            config.assign_default(*row);
        }
        return {};
    }
    Setting parsed = target;
    if (const std::string wrong = parse_value(*row, value, parsed); !wrong.empty()) {
        return {false, blamed(name, value, origin) + wrong};
    }
    parsed.source = source;
    parsed.hold = ValueHold::Free;
    parsed.origin = origin;
    target = std::move(parsed);
    return {};
}

ConfigLoader::Fault ConfigLoader::force(const ConfigLine& line, ValueSource source,
                                        Config& config) {
    const Variable* const row = find_variable(line.name);
    if (row == nullptr) {
        return {true, unknown(line.name, line.origin)};
    }
    if (line.value.empty() && (row->type != ValueType::Text || row->key == Key::Disable)) {
        return {false, blamed(line.written, "", line.origin) + "needs a value"};
    }
    const Setting before = config.setting(row->key);
    config.assign_default(*row);
    if (Fault fault = assign(line.name, line.value, source, line.origin, config);
        !fault.line.empty()) {
        config.at(*row) = before;
        fault.line.replace(0, line.name.size(), line.written);  // "force.DEFT_MODE='3' (..."
        return fault;
    }
    Setting& now = config.at(*row);
    now.source = source;
    now.hold = ValueHold::Forced;
    now.origin = "forced by " + line.origin;
    // Nothing of what it was set to counts, right or wrong.
    std::erase_if(config.problems_, [&](const std::string& problem) {
        return problem.starts_with(line.name + "='") ||
               problem.starts_with("force." + line.name + "='");
    });
    if (before.source > ValueSource::SystemFile && before.text != now.text) {
        config.overruled_.push_back(line.name + "=" + shown_text(before.text) + " (" +
                                    before.origin + ") gives way to '" + shown_text(now.text) +
                                    "', " + now.origin);
    }
    return {};
}

ConfigLoader::Fault ConfigLoader::cap(const ConfigLine& line, Config& config) {
    const Variable* const row = find_variable(line.name);
    if (row == nullptr) {
        return {true, unknown(line.name, line.origin)};
    }
    if (!has_order(*row)) {
        return {false, blamed(line.written, line.value, line.origin) +
                           "has no order; only DEFT_MODE and numbers have a ceiling"};
    }
    Setting ceiling;
    const std::string wrong =
        line.value.empty() ? "needs a value" : parse_value(*row, line.value, ceiling);
    if (!wrong.empty()) {
        return {false, blamed(line.written, line.value, line.origin) + wrong};
    }
    Setting& now = config.at(*row);
    if (!exceeds(*row, now, ceiling)) {
        return {};
    }
    // Covap is no weaker form of deft, nor the other way round.
    if (row->key == Key::Mode && ceiling.text == "deft") {
        parse_value(*row, "exact", ceiling);
    }
    const bool users = now.source > ValueSource::SystemFile;
    const std::string was = now.text + ", " + now.origin;
    // Where the value came from still counts: a ceiling sets nothing.
    now.text = ceiling.text;
    now.integer = ceiling.integer;
    now.real = ceiling.real;
    now.hold = ValueHold::Capped;
    now.origin = "capped by " + line.origin + "; " + was;
    if (users) {
        config.overruled_.push_back(line.name + " is " + shown_text(now.text) + ", " + now.origin);
    }
    return {};
}

void ConfigLoader::draw_canary(Config& config) const {
    const Setting& share = config.setting(Key::Canary);
    if (share.source == ValueSource::Default || config.is(Key::Mode, "off")) {
        return;
    }
    JobIdentity::Id id = launched_as_;
    if (const std::string& given = config.text(Key::JobId); !given.empty()) {
        id = {given, variable(Key::JobId).name};
    }
    const std::string said = "DEFT_CANARY=" + share.text + " (" + share.origin + "): ";
    if (id.value.empty() && share.real < 100) {
        config.canary_undecided_ = true;
        config.overruled_.push_back(said + "the job has no id, so it runs without deft; set " +
                                    variable(Key::JobId).name + " (docs/fleets.md)");
        config.switch_off(share.source, said + "the job has no id");
    } else if (lot_of(id.value) >= share.real) {
        config.switch_off(share.source,
                          said + "job " + shown_text(id.value) + " (" + id.from + ") is not taken");
    }
}

bool ConfigLoader::dropped(const ConfigLine& line) const {
    return std::any_of(dropped_.begin(), dropped_.end(), [&](const Dropped& each) {
        return each.origin == line.origin && line.name == variable(each.key).name;
    });
}

bool ConfigLoader::drop_wrong_texts(const Config& config,
                                    const std::vector<TextProblem>& problems) {
    bool any = false;
    for (const TextProblem& problem : problems) {
        const Setting& setting = config.setting(problem.key);
        if (problem.line.empty() || setting.source != ValueSource::SystemFile) {
            continue;
        }
        constexpr std::string_view kForced = "forced by ";
        const bool forced = setting.hold == ValueHold::Forced;
        const std::string origin = forced ? setting.origin.substr(kForced.size()) : setting.origin;
        const bool known =
            std::any_of(system_.lines.begin(), system_.lines.end(),
                        [&](const ConfigLine& line) { return line.origin == origin; });
        if (known) {
            dropped_.push_back({origin, problem.key, problem.line});
            any = true;
        }
    }
    return any;
}

}  // namespace deft
