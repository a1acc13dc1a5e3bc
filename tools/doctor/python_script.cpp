// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/script_text.h"

#include <algorithm>
#include <cctype>
#include <deque>
#include <optional>

#include "tools/doctor/rendezvous.h"
#include "tools/doctor/script_lines.h"

namespace deft::tools::doctor {
namespace {

// The text between the first two quotes behind `from`; empty: none.
std::string quoted_text(std::string_view line, std::size_t from) {
    const auto open = line.find_first_of("'\"", from);
    if (open == line.npos) {
        return {};
    }
    const auto close = line.find(line[open], open + 1);
    return close == line.npos ? std::string()
                              : std::string(line.substr(open + 1, close - open - 1));
}

std::string_view trim_left(std::string_view text) {
    return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

// Takes a text in quotes off the beginning of `line`; empty: there is none.
std::optional<std::string> take_quoted(std::string_view& line) {
    const auto close =
        line.starts_with('\'') || line.starts_with('"') ? line.find(line[0], 1) : line.npos;
    if (close == line.npos) {
        return std::nullopt;
    }
    std::string text(line.substr(1, close - 1));
    line = trim_left(line.substr(close + 1));
    return text;
}

// os.environ["NAME"] = "value", os.environ.setdefault("NAME", "value"), os.putenv("NAME", "value").
// An empty value is one, too: it hides all GPUs. It counts only where the whole line surely sets
// it, as others often stand for "not set". Where ranks meet one branch often says for a job of one
// host, so there only what is surely carried out counts, too.
void read_python_assignment(int number, std::string_view line, bool indented, ScriptText& found) {
    constexpr std::string_view kForms[] = {"environ[", "environ.setdefault(", "putenv("};
    for (const std::string_view form : kForms) {
        const auto at = line.find(form);
        if (at == line.npos) {
            continue;
        }
        std::string_view rest = trim_left(line.substr(at + form.size()));
        const std::optional<std::string> name = take_quoted(rest);
        const bool item = form.ends_with('[');
        if (item && rest.starts_with(']')) {
            rest = trim_left(rest.substr(1));
        } else if (item) {
            return;
        }
        if (!name || !rest.starts_with(item ? '=' : ',')) {
            return;
        }
        rest = trim_left(rest.substr(1));
        const std::optional<std::string> value = take_quoted(rest);
        const bool begins = at == 0 || (at == 3 && line.starts_with("os."));
        if (!item && rest.starts_with(')')) {
            rest = trim_left(rest.substr(1));
        }
        const bool whole =
            begins && !indented && (rest.empty() || rest.starts_with('#') || rest.starts_with(';'));
        const bool if_unset = form.starts_with("environ.");
        if (is_meeting_place(*name) && (indented || !begins || !value)) {
            if (!value && !if_unset) {
                found.assignments.push_back({*name, "", number, false, true});
            }
        } else if (value && (!value->empty() || whole)) {
            found.assignments.push_back({*name, *value, number, if_unset});
        }
        return;
    }
}

// os.environ.update(NAME="value", ...), os.environ |= {"NAME": "value"}.
bool updates_environment(std::string_view line) {
    return has(line, "environ.update(") || has(line, "environ |=");
}

void read_python_update(int number, std::string_view line, bool indented, ScriptText& found) {
    const auto is_name = [](char letter) {
        return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
    };
    const auto first = line.find_first_of("({");
    for (std::size_t at = std::min(first, line.size()); at < line.size(); ++at) {
        if (line[at] != '=' && line[at] != ':') {
            continue;
        }
        const auto value = line.find_first_not_of(' ', at + 1);
        auto end = line.find_last_not_of(" '\"", at - 1);
        auto begin = end;
        while (begin != line.npos && begin > 0 && is_name(line[begin - 1])) {
            --begin;
        }
        if (value == line.npos || (line[value] != '"' && line[value] != '\'') || end == line.npos) {
            continue;
        }
        const std::string name(line.substr(begin, end + 1 - begin));
        const std::string text = quoted_text(line, value);
        if (!name.empty() && !text.empty() && !(indented && is_meeting_place(name))) {
            found.assignments.push_back({name, text, number});
        }
        at = value + text.size() + 1;
    }
}

// os.environ, os.putenv: the variable is taken away, or gets a value without deft.
bool resets_variable(std::string_view line) {
    const auto at = line.find("LD_PRELOAD");
    if (at == line.npos) {
        return false;
    }
    const std::string_view rest = line.substr(at + std::string_view("LD_PRELOAD").size());
    if (has(line, "putenv(")) {
        return !keeps_preload(rest);
    }
    if (has(line, "unsetenv(")) {
        return true;
    }
    // Of a copy, too: `env = dict(os.environ)`, and a child gets it.
    if (has(line, ".pop(") || line.starts_with("del ")) {
        return true;
    }
    if (!has(line, "environ")) {
        return false;
    }
    const auto equals = rest.find('=');
    const bool sets = equals != rest.npos && rest.substr(equals, 2) != "==";
    return sets && !keeps_preload(rest);
}

// A child with an environment of its own.
bool starts_without(std::string_view line) {
    const bool anew = line.starts_with("os.environ = ") && !has(line.substr(10), "environ");
    if (anew || line.starts_with("os.environ.clear()")) {
        return true;
    }
    if (has(line, "os.system(") || has(line, "shell=True")) {
        const ScriptText inner = read_shell_script("", quoted_text(line, 0));
        if (!inner.preload_resets.empty()) {
            return true;
        }
    }
    const bool replaces = has(line, "execve(") || has(line, "execvpe(") || has(line, "spawnve(");
    if (replaces && has(line, "{") && !has(line, "environ") && !has(line, "**")) {
        return true;
    }
    const bool starts = has(line, "subprocess") || has(line, "Popen(") || has(line, "run(") ||
                        has(line, "call(") || has(line, "exec");
    return starts && has(line, "env={") && !has(line, "environ") && !has(line, "**");
}

// `os.environ.pop(k)` of a loop over names; `lines`: this one and those before it.
Removal loop_removal(std::string_view line, const std::string& lines) {
    const auto at = std::min(line.find("environ.pop("), line.find("del os.environ["));
    const auto open = at == line.npos ? at : line.find_first_of("([", at);
    const bool literal = open == line.npos || line.find_first_of("'\"", open) == open + 1;
    if (literal || !has(lines, "for ")) {
        return Removal::No;
    }
    const bool negated = has(lines, "not ") || has(lines, "!=");
    if (names_preload(lines)) {
        return negated ? Removal::No : Removal::Yes;
    }
    const bool all = has(lines, "in os.environ") || has(lines, "(os.environ)") ||
                     has(lines, "environ.keys") || has(lines, "environ.copy");
    return all && (negated || !names_others(lines)) ? Removal::Perhaps : Removal::No;
}

// `env = {k: v for k, v in os.environ.items() if ...}`: for a child, by the name.
Removal choice_removal(std::string_view line) {
    const auto equals = line.find('=');
    const auto condition = line.rfind(" if ");
    if (equals == line.npos || condition == line.npos || !has(line.substr(0, equals), "env") ||
        !has(line, " for ") || !has(line, "environ")) {
        return Removal::No;
    }
    const std::string_view which = line.substr(condition);
    const bool goes = has(which, "not ") || has(which, "!=");
    if (names_preload(which)) {
        return goes ? Removal::Yes : Removal::No;
    }
    return goes && names_others(which) ? Removal::No : Removal::Perhaps;
}

Removal removal_of(std::string_view line, std::deque<std::string>& latest) {
    constexpr std::size_t kLines = 4;  // a loop, a condition, and what it does
    latest.emplace_back(line);
    if (latest.size() > kLines) {
        latest.pop_front();
    }
    if (resets_variable(line) || starts_without(line)) {
        return Removal::Yes;
    }
    std::string lines;
    for (const std::string& each : latest) {
        lines += each + "\n";
    }
    return std::max(loop_removal(line, lines), choice_removal(line));
}

// PyTorch's back ends without NCCL. "cpu:gloo,cuda:nccl" has both.
bool uses_no_nccl(std::string_view line) {
    const auto at = line.find("init_process_group(");
    if (at == line.npos) {
        return false;
    }
    const auto name = std::min(line.find("backend=", at), line.size());
    const std::string backend = quoted_text(line, name == line.size() ? at : name);
    return backend == "gloo" || backend == "mpi";
}

bool imports(std::string_view line, std::string_view package) {
    for (const std::string_view word : {"import ", "from "}) {
        if (line.starts_with(std::string(word) + std::string(package))) {
            const std::string_view rest = line.substr(word.size() + package.size());
            return rest.empty() || rest[0] == ' ' || rest[0] == '.' || rest[0] == ',';
        }
    }
    return false;
}

// An indented import may be one that the script can do without.
bool imports_torch(std::string_view text) {
    if (has(text, "sys.path") || has(text, "addsitedir")) {
        return false;
    }
    for (std::size_t start = 0; start < text.size();) {
        const auto end = std::min(text.find('\n', start), text.size());
        if (imports(text.substr(start, end - start), "torch")) {
            return true;
        }
        start = end + 1;
    }
    return false;
}

bool opens_by_handle(std::string_view line) {
    const bool opens = has(line, "CDLL(") || has(line, "LoadLibrary(") || has(line, "dlopen(");
    if (opens && has(line, "libnccl") && !names_ours(line)) {
        return true;
    }
    return imports(line, "jax") || imports(line, "vllm");
}

}  // namespace

ScriptText read_python_script(const std::string& file, std::string_view text) {
    ScriptText found;
    found.imports_torch = imports_torch(text);
    std::deque<std::string> latest;
    for_each_line(text, [&](int number, std::string_view line, bool indented) {
        if (line.starts_with('#')) {
            return;
        }
        const ScriptLine where{file, number, std::string(line)};
        const Removal removal = removal_of(line, latest);
        if (removal == Removal::Yes) {
            found.preload_resets.push_back(where);
        } else if (removal == Removal::Perhaps) {
            found.preload_doubts.push_back(where);
        }
        if (uses_no_nccl(line)) {
            found.other_backends.push_back(where);
        }
        if (opens_by_handle(line)) {
            found.handles.push_back(where);
        }
        if (has(line, "DEEPBIND")) {
            found.deepbinds.push_back(where);
        }
        if (updates_environment(line)) {
            read_python_update(number, line, indented, found);
        } else {
            read_python_assignment(number, line, indented, found);
        }
    });
    if (has(text, "nccl")) {  // of a group of its own, or where there are GPUs
        found.other_backends.clear();
    }
    return found;
}

}  // namespace deft::tools::doctor
