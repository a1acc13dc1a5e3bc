// SPDX-License-Identifier: Apache-2.0
#include "tools/env.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/environment.h"
#include "tools/settings_check.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

const char* type_name(ValueType type) {
    switch (type) {
        case ValueType::Choice:
            return "choice";
        case ValueType::Bool:
            return "switch";
        case ValueType::Integer:
            return "whole number";
        case ValueType::Bytes:
            return "size";
        case ValueType::Duration:
            return "duration";
        case ValueType::Real:
            return "number";
        case ValueType::Text:
            return "text";
    }
    return "";
}

const char* group_name(VariableGroup group) {
    switch (group) {
        case VariableGroup::Operator:
            return "operator";
        case VariableGroup::Debug:
            return "debug";
    }
    return "";
}

const char* source_name(ValueSource source) {
    switch (source) {
        case ValueSource::Default:
            return "default";
        case ValueSource::SystemFile:
            return "system file";
        case ValueSource::UserFile:
            return "user file";
        case ValueSource::Environment:
            return "environment";
    }
    return "";
}

// What may be written: "off, observe", "0 or 1", "100ms..1h".
std::string allowed(const Variable& variable) {
    switch (variable.type) {
        case ValueType::Bool:
            return "0 or 1";
        case ValueType::Choice: {
            std::string words;
            for (const char* c = variable.range; *c != '\0'; ++c) {
                words += *c == '|' ? std::string(", ") : std::string(1, *c);
            }
            return words;
        }
        case ValueType::Integer:
        case ValueType::Bytes:
        case ValueType::Duration:
        case ValueType::Real:
        case ValueType::Text:
            break;
    }
    return variable.range;
}

// What a number without a suffix means, and which suffixes there are.
std::string notation(const Variable& variable) {
    switch (variable.type) {
        case ValueType::Bytes:
            return "bytes, or with suffix K, M, G (powers of 1024)";
        case ValueType::Duration:
            return "milliseconds, or with suffix ns, us, ms, s, min, h";
        case ValueType::Choice:
        case ValueType::Bool:
        case ValueType::Integer:
        case ValueType::Real:
        case ValueType::Text:
            break;
    }
    return variable.unit;
}

std::string shown_default(const Variable& variable) {
    return variable.default_text[0] == '\0' ? "(empty)" : variable.default_text;
}

std::vector<std::string> problems_of(const Config& config) {
    std::vector<std::string> problems(config.problems().begin(), config.problems().end());
    if (!config.central_problem().empty()) {
        problems.push_back("jobs of this host run without deft: " + config.central_problem());
    }
    for (const std::string& line : config.ignored_lines()) {
        problems.push_back("the line is ignored: " + line);
    }
    for (TextProblem& problem : text_settings_problems(config)) {
        problems.push_back(std::move(problem.line));
    }
    return problems;
}

std::vector<std::string> warnings_of(const Config& config) {
    std::vector<std::string> warnings(config.warnings().begin(), config.warnings().end());
    warnings.insert(warnings.end(), config.overruled().begin(), config.overruled().end());
    return warnings;
}

const char* hold_name(ValueHold hold) {
    switch (hold) {
        case ValueHold::Free:
            return "free";
        case ValueHold::Forced:
            return "forced";
        case ValueHold::Capped:
            return "capped";
    }
    return "";
}

std::string roff(std::string_view text) {
    std::string escaped;
    for (const char c : text) {
        if (c == '\\') {
            escaped += "\\e";
        } else if (c == '-') {
            escaped += "\\-";
        } else if ((c == '.' || c == '\'') && escaped.empty()) {
            escaped += "\\&" + std::string(1, c);
        } else {
            escaped += c;
        }
    }
    return escaped;
}

std::string markdown_text(std::string_view text) {
    std::string escaped;
    for (const char c : text) {
        if (c == '<' || c == '*') {
            escaped += '\\';
        }
        escaped += c;
    }
    return escaped;
}

// A paragraph in lines of at most 100 columns; those after the first begin with `indent`.
std::string markdown_paragraph(std::string_view text, std::string_view indent = "") {
    constexpr std::size_t kColumns = 100;
    std::string lines;
    std::size_t column = 0;
    while (!text.empty()) {
        const std::size_t length = std::min(text.find(' '), text.size());
        if (column > 0 && column + 1 + length > kColumns) {
            lines += fmt::format("\n{}", indent);
            column = indent.size();
        } else if (column > 0) {
            lines += ' ';
            ++column;
        }
        lines += text.substr(0, length);
        column += length;
        text.remove_prefix(std::min(text.size(), length + 1));
    }
    return lines + "\n";
}

std::string markdown_code(std::string_view text) {
    return fmt::format("`{}`", text);
}

constexpr const char* kMarkdownIntroduction[] = {
    "A variable is taken from the first place that has it: the environment, the file named by "
    "`DEFT_CONF`, `/etc/deft/deft.conf`. Else the variable has its default. `deft env` shows what "
    "holds on a host, and why; `deft env -- COMMAND` shows what COMMAND would have.",
    "A file holds lines `NAME=value`; of several lines for one name the last counts. A comment "
    "begins with `#`, on a line of its own or behind a value and a blank. A value that holds a "
    "blank and `#` stands in quotes. An empty value means \"not set\". An empty value of a "
    "variable of type text gives the variable its default back, whatever a file says.",
    "A file may also force and cap. `force.NAME=value` beats the environment. `ceiling=exact` "
    "lowers a mode that goes further; `ceiling.NAME=value` does the same for any number "
    "(`ceiling.DEFT_STREAMS=2`). The modes stand in this order: off, observe, exact, deft, covap. "
    "Under `ceiling=deft`, covap becomes exact, because deft is no weaker covap. A ceiling also "
    "caps what is forced. `kill=PATH`, with a full path, is short for `force.DEFT_KILL_FILE=PATH`. "
    "Both halves of the library obey, so `force.DEFT_CHECKSUM=crc32c` reaches the network plugin.",
    "What `/etc/deft/deft.conf` forces or caps, no environment and no `DEFT_CONF` undoes. "
    "`DEFT_DISABLE` alone remains a job's own way out: nobody is forced to have deft. A job that "
    "asked for something else gets one WARN, from rank 0. `force.`, `ceiling` and `kill` count in "
    "that file only if it belongs to root (or to the job's own user), and neither its group (but "
    "root's) nor everybody may write to it. In the file of `DEFT_CONF` they bind that job alone.",
    "A section holds for some jobs, up to the next section: `[host=node0*,gpu1]`, "
    "`[partition=debug user=alice]`, `[executable=train.py]`. All conditions have to hold, and "
    "one of the patterns of each; patterns are those of fnmatch(3). `[*]` is for every job again. "
    "host is the short or the full name. partition is `SLURM_JOB_PARTITION`. user is the number "
    "or the name in `/etc/passwd`; of a user who is not in that file, what `SLURM_JOB_USER`, "
    "`USER` or `LOGNAME` says. executable is the program's path or name, and the script that a "
    "Python runs. A job can change its environment, so where nobody may evade a line, name hosts "
    "or numbers of users.",
    "`/etc/deft/deft.conf` is read by every job of a host, so a mistake in that file stops no job. "
    "A line that is wrong is ignored: an unknown name, a wrong value, an interface that the host "
    "does not have. A section that is wrong holds for nobody. One WARN names file, line and "
    "remedy, and `deft env` lists all such lines and ends with status 1. There are two "
    "exceptions: a wrong value of `DEFT_MODE`, `force.DEFT_MODE` or `ceiling`, which may have been "
    "meant to switch off, and a file that cannot be read. Jobs then run without deft: neither its "
    "plugin nor its hooks are at work, no other line of the file holds, and one WARN says why. "
    "Only the user's own `DEFT_REQUIRE=1` makes that an error.",
    "Keep the file equal on all hosts. Where settings that all ranks need equal differ, no plan is "
    "made for the job, and one line says so. `DEFT_MODE=off` on some hosts of a job gives these "
    "hosts another network than the others have. NCCL cannot connect such hosts, and the job ends "
    "as it does with any plugin that some hosts lack.",
    "A user's own value that is wrong is never replaced by a default in silence. `deft run` checks "
    "the values beforehand and starts nothing if one is wrong. In a job each half refuses what "
    "concerns that half: the plugin does not initialise, the preloaded library warns once and "
    "forwards every call. A value outside \"allowed\" concerns both halves. A wrong "
    "`DEFT_INTERFACES` concerns the plugin; a wrong `DEFT_OPTIMIZER`, `DEFT_PREDICT` or "
    "`DEFT_LANES` concerns the preloaded library.",
    "What only the running job can tell gives a WARN and the default. Examples are a congestion "
    "control that the host does not offer, a `DEFT_PLAN` of another mode, and a `DEFT_LOG_FILE` "
    "that cannot be opened. Where a `DEFT_NCCL_LIB` cannot be loaded, NCCL is looked for in the "
    "process."};

// The section of one variable: what it means, then what may be written.
std::string markdown_variable(const Variable& variable) {
    std::string facts = fmt::format("- Type: {}", type_name(variable.type));
    if (const std::string how = notation(variable); !how.empty()) {
        facts += fmt::format(" ({})", how);
    }
    if (const std::string words = allowed(variable); !words.empty()) {
        facts += fmt::format("; allowed: {}", words);
    }
    const std::string usual =
        variable.default_text[0] == '\0' ? "empty" : markdown_code(variable.default_text);
    return fmt::format("\n### `{}`\n\n{}\n{}- Default: {}; since {}\n", variable.name,
                       markdown_paragraph(markdown_text(variable.doc)),
                       markdown_paragraph(markdown_text(facts), "  "), usual, variable.since);
}

}  // namespace

std::string human_settings(const Config& config) {
    std::string text;
    for (const Variable& row : variables()) {
        const Setting& setting = config.setting(row.key);
        text += fmt::format("{}={}   [{}]\n", row.name, printable(setting.text), setting.origin);
        std::string facts = type_name(row.type);
        if (const std::string words = allowed(row); !words.empty()) {
            facts += ": " + words;
        }
        if (const std::string how = notation(row); !how.empty()) {
            facts += " (" + how + ")";
        }
        text += fmt::format("    {}\n    {}; default {}; {}; since {}\n", row.doc, facts,
                            shown_default(row), group_name(row.group), row.since);
    }
    for (const std::string& warning : warnings_of(config)) {
        text += "warning: " + printable(warning) + "\n";
    }
    for (const std::string& problem : problems_of(config)) {
        text += "problem: " + printable(problem) + "\n";
    }
    return text;
}

std::string json_settings(const Config& config) {
    nlohmann::ordered_json document;
    document["format"] = "deft-env";
    document["version"] = 1;
    document["variables"] = nlohmann::ordered_json::array();
    for (const Variable& row : variables()) {
        const Setting& setting = config.setting(row.key);
        document["variables"].push_back({{"name", row.name},
                                         {"value", setting.text},
                                         {"source", source_name(setting.source)},
                                         {"hold", hold_name(setting.hold)},
                                         {"origin", setting.origin},
                                         {"type", type_name(row.type)},
                                         {"unit", row.unit},
                                         {"default", row.default_text},
                                         {"range", row.range},
                                         {"group", group_name(row.group)},
                                         {"since", row.since},
                                         {"doc", row.doc}});
    }
    document["warnings"] = warnings_of(config);
    document["problems"] = problems_of(config);
    // Values come from the environment and need not be UTF-8.
    return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string markdown_reference() {
    std::string text =
        "# Configuration\n\n"
        "<!-- Written by `deft env --markdown`. Change base/config_table.def instead. "
        "-->\n";
    for (const char* const paragraph : kMarkdownIntroduction) {
        text += "\n" + markdown_paragraph(paragraph);
    }
    for (const VariableGroup group : {VariableGroup::Operator, VariableGroup::Debug}) {
        text += group == VariableGroup::Operator
                    ? "\n## For operators\n"
                    : "\n## For debugging\n\nThese may change between releases.\n";
        for (const Variable& row : variables()) {
            if (row.group == group) {
                text += markdown_variable(row);
            }
        }
    }
    return text;
}

std::string man_page() {
    std::string text =
        ".\\\" SPDX-License-Identifier: Apache-2.0\n"
        ".\\\" Written by `deft env --man`.\n"
        ".TH DEFT.CONF 5 \"\" \"deft " DEFT_VERSION
        "\"\n"
        ".SH NAME\ndeft.conf \\- configuration of deft\n"
        ".SH SYNOPSIS\n.I /etc/deft/deft.conf\n"
        ".SH DESCRIPTION\n"
        "Lines\n.IR NAME = value ,\ncomments start with #. The same names are read from the "
        "environment,\n"
        "which comes first, then from the file named by\n.BR DEFT_CONF ,\nthen from\n.IR "
        "/etc/deft/deft.conf .\n"
        "A wrong value is an error, never replaced by the default.\n"
        "A mistake in\n.I /etc/deft/deft.conf\nstops no job: a wrong line is ignored, and one "
        "warning says so. Where the line was to set the mode, jobs run without deft.\n"
        ".SS Forcing, capping, sections\n"
        ".IR force.NAME = value\nbeats the environment.\n"
        ".IR ceiling = mode\nlowers a mode that goes further (off, observe, exact, deft, covap), "
        "and\n.IR ceiling.NAME = value\na number.\n"
        ".IR kill = path\nnames a file that ends plans while it is there, next to\n"
        ".IR /etc/deft/off .\n"
        "Only\n.B DEFT_DISABLE\nin the environment undoes that.\n"
        ".PP\n"
        ".I [host=PATTERN,... partition=... user=... executable=...]\nbegins lines for jobs that "
        "fit every condition,\n.I [*]\nlines for all jobs again.\n"
        ".SH VARIABLES\n";
    for (const Variable& row : variables()) {
        std::string facts = type_name(row.type);
        if (const std::string words = allowed(row); !words.empty()) {
            facts += ": " + words;
        }
        if (const std::string how = notation(row); !how.empty()) {
            facts += " (" + how + ")";
        }
        text += fmt::format(".TP\n.B {}\n{}\n.br\n{}; default {}; {}; since {}.\n", row.name,
                            roff(row.doc), roff(facts), roff(shown_default(row)),
                            group_name(row.group), row.since);
    }
    return text + ".SH SEE ALSO\n.BR deft (1)\n";
}

std::string sample_conf() {
    std::string text =
        "# /etc/deft/deft.conf: settings of all jobs of this host. deft.conf(5) says more.\n"
        "# Keep it equal on all hosts. A wrong line is ignored, with a WARN in every job;\n"
        "# `deft env` shows what holds. The file should be root's, and nobody else's to write.\n"
        "#\n"
        "# No job gets past these:\n"
        "#force.DEFT_MODE=off\n"
        "#ceiling=exact\n"
        "# A file that ends plans in running jobs while it is there, next to /etc/deft/off:\n"
        "#kill=/shared/deft/off\n"
        "# Lines for some jobs, up to the next section; [*] is for all again:\n"
        "#[host=node0* partition=debug user=alice executable=train.py]\n";
    for (const Variable& row : variables()) {
        // A file that names a file, and one that switches off whatever it says, make no sense here.
        if (row.group != VariableGroup::Operator || row.key == Key::Conf) {
            continue;
        }
        text += "\n# " + markdown_paragraph(row.doc, "# ");
        if (const std::string words = allowed(row); !words.empty()) {
            text += "# Allowed: " + words + "\n";
        }
        text += fmt::format("#{}={}\n", row.name, row.default_text);
    }
    return text;
}

int env(const EnvOptions& options) {
    switch (options.format) {
        case EnvOptions::Format::Markdown:
            return print(markdown_reference());
        case EnvOptions::Format::Man:
            return print(man_page());
        case EnvOptions::Format::Conf:
            return print(sample_conf());
        case EnvOptions::Format::Human:
        case EnvOptions::Format::Json:
            break;
    }
    const Config config = Config::load(Environment(environ).entries(), kSystemConfigFile,
                                       text_settings_problems, options.command);
    const int printed = print(options.format == EnvOptions::Format::Json ? json_settings(config)
                                                                         : human_settings(config));
    return printed == kSuccess && !problems_of(config).empty() ? kProblem : printed;
}

}  // namespace deft::tools
