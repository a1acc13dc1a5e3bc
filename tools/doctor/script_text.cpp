// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/script_text.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace deft::tools::doctor {
namespace {

bool has(std::string_view text, std::string_view what) {
    return text.find(what) != text.npos;
}

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r");
    const auto last = text.find_last_not_of(" \t\r");
    return first == text.npos ? std::string_view() : text.substr(first, last - first + 1);
}

// Calls `each` with every line, numbered from 1, trimmed; a backslash at its end joins the next.
template <class Each>
void for_each_line(std::string_view text, Each&& each) {
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
        each(first, trimmed(line));
    }
}

bool is_assignment(const std::string& word) {
    const auto equals = word.find('=');
    if (equals == word.npos || equals == 0) {
        return false;
    }
    return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                       [](unsigned char letter) { return std::isalnum(letter) || letter == '_'; });
}

bool names_ours(std::string_view value) {
    return has(value, "libnccl-net-deft") || has(value, "libdeft-preload");
}

// Whether this value of LD_PRELOAD keeps what stood there, or names deft itself.
bool keeps_preload(std::string_view value) {
    return has(value, "LD_PRELOAD") || names_ours(value);
}

// Splits into commands and words as a shell does, as far as one line tells.
class ShellLine {
public:
    std::vector<std::vector<std::string>> split(std::string_view line) {
        for (std::size_t i = 0; i < line.size(); ++i) {
            const char letter = line[i];
            if (quote_ != '\0') {
                quoted(line, i);
            } else if (letter == '\'' || letter == '"') {
                quote_ = letter;
                in_word_ = true;
            } else if (letter == '\\' && i + 1 < line.size()) {
                word_ += line[++i];
                in_word_ = true;
            } else if (letter == '#' && !in_word_) {
                break;
            } else if (letter == ' ' || letter == '\t') {
                end_word();
            } else if (letter == ';' || letter == '|' || letter == '&' || letter == '(' ||
                       letter == ')' || letter == '`') {
                end_command();
            } else {
                word_ += letter;
                in_word_ = true;
            }
        }
        end_command();
        return std::move(commands_);
    }

private:
    std::vector<std::vector<std::string>> commands_;
    std::vector<std::string> words_;
    std::string word_;
    bool in_word_ = false;
    char quote_ = '\0';

    void quoted(std::string_view line, std::size_t& i) {
        if (line[i] == quote_) {
            quote_ = '\0';
        } else if (quote_ == '"' && line[i] == '\\' && i + 1 < line.size()) {
            word_ += line[++i];
        } else {
            word_ += line[i];
        }
    }
    void end_word() {
        if (in_word_) {
            words_.push_back(std::move(word_));
        }
        word_.clear();
        in_word_ = false;
    }
    void end_command() {
        end_word();
        if (!words_.empty()) {
            commands_.push_back(std::move(words_));
        }
        words_.clear();
    }
};

class ShellScript {
public:
    explicit ShellScript(const std::string& file) : file_(file) {}

    void line(int number, std::string_view text) {
        // Slurm reads such a line, whatever the shell makes of it.
        if (text.starts_with("#SBATCH") && has(text, "--export=") && !has(text, "ALL") &&
            !has(text, "LD_PRELOAD")) {
            found_.preload_resets.push_back({file_, number, std::string(text)});
        }
        for (std::vector<std::string>& words : shell_commands(text)) {
            command(number, std::string(text), std::move(words));
        }
    }
    ScriptText finish() {
        if (!found_.commands.empty()) {
            found_.commands.back().last = true;
        }
        // Later lines put deft back, in one way or another.
        std::erase_if(found_.preload_resets,
                      [&](const ScriptLine& each) { return each.line < put_back_; });
        return std::move(found_);
    }

private:
    const std::string& file_;
    ScriptText found_;
    int put_back_ = 0;

    void assign(int number, const std::string& text, const std::string& word) {
        const auto equals = word.find('=');
        const std::string name = word.substr(0, equals);
        const std::string value = word.substr(equals + 1);
        if (name == "LD_PRELOAD") {
            if (names_ours(value)) {
                put_back_ = number;
            } else if (!keeps_preload(value)) {
                found_.preload_resets.push_back({file_, number, text});
            }
        }
        if (name == "PYTHONPATH" && !has(value, "PYTHONPATH")) {
            found_.python_path_resets.push_back({file_, number, text});
        }
        if (!has(value, "$")) {
            found_.assignments.push_back({name, value, number});
        }
    }
    // True if the words are one of the shell's own commands on variables.
    bool builtin(int number, const std::string& text, const std::vector<std::string>& words) {
        const std::string& name = words.front();
        if (name == "unset" || name == "export" || name == "declare" || name == "typeset") {
            const bool away =
                name == "unset" || std::find(words.begin(), words.end(), "-n") != words.end();
            for (std::size_t i = 1; i < words.size(); ++i) {
                if (is_assignment(words[i])) {
                    assign(number, text, words[i]);
                } else if (away && words[i] == "PYTHONPATH") {
                    found_.python_path_resets.push_back({file_, number, text});
                } else if (away && (words[i] == "LD_PRELOAD" || words[i].starts_with("${!LD"))) {
                    found_.preload_resets.push_back({file_, number, text});
                }
            }
            return true;
        }
        return false;
    }
    // `ulimit -n 256`, -Sn and -Hn too.
    void note_limit(int number, const std::string& text, const std::vector<std::string>& words) {
        for (std::size_t i = 1; words.front() == "ulimit" && i + 1 < words.size(); ++i) {
            const bool digits = words[i + 1].find_first_not_of("0123456789") == std::string::npos;
            if (words[i].starts_with('-') && words[i].ends_with('n') && digits) {
                found_.limits.push_back(
                    {{file_, number, text}, std::strtoull(words[i + 1].c_str(), nullptr, 10)});
            }
        }
    }
    static bool keyword(const std::string& word) {
        return word == "then" || word == "do" || word == "else" || word == "if" ||
               word == "while" || word == "!" || word == "{" || word == "time";
    }
    // Takes what stands before the command's own words; true if it is behind `exec`.
    bool take_beginning(int number, const std::string& text, std::vector<std::string>& words) {
        std::size_t at = 0;
        while (at < words.size() && keyword(words[at])) {
            ++at;
        }
        for (; at < words.size() && is_assignment(words[at]); ++at) {
            assign(number, text, words[at]);
        }
        const bool exec = at < words.size() && words[at] == "exec";
        at += exec ? 1 : 0;
        if (exec && at < words.size() && words[at].starts_with("-") && has(words[at], "c")) {
            found_.preload_resets.push_back({file_, number, text});
            ++at;
        }
        words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(at));
        return exec;
    }
    void command(int number, const std::string& text, std::vector<std::string> words) {
        const bool exec = take_beginning(number, text, words);
        if (words.empty() || builtin(number, text, words)) {
            return;
        }
        note_limit(number, text, words);
        const auto unset = std::find(words.begin(), words.end(), "LD_PRELOAD");
        if (words.front().ends_with("env") && unset != words.end() && unset != words.begin() &&
            *(unset - 1) == "-u") {
            found_.preload_resets.push_back({file_, number, text});
        }
        // Behind a launcher too: `srun deft run -- ./train`.
        const auto ours = std::adjacent_find(words.begin(), words.end(),
                                             [](const std::string& one, const std::string& next) {
                                                 return one.ends_with("deft") && next == "run";
                                             });
        if (ours != words.end()) {
            put_back_ = number;
        }
        found_.commands.push_back({std::move(words), number, exec});
    }
};

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

// os.environ["NAME"] = "value", os.environ.setdefault("NAME", "value"), os.putenv("NAME", "value").
void read_python_assignment(int number, std::string_view line, ScriptText& found) {
    const auto at = std::min(line.find("environ"), line.find("putenv("));
    if (at == line.npos) {
        return;
    }
    const std::string name = quoted_text(line, at);
    const auto behind = name.empty() ? line.npos : line.find(name, at) + name.size() + 1;
    const bool sets = behind < line.size() && (has(line.substr(behind), "=") ||
                                               has(line, "setdefault(") || has(line, "putenv("));
    const std::string value = sets ? quoted_text(line, behind) : std::string();
    if (!value.empty() && !has(line.substr(behind), "==")) {
        found.assignments.push_back({name, value, number});
    }
}

// os.environ.update(NAME="value", ...), os.environ |= {"NAME": "value"}.
bool updates_environment(std::string_view line) {
    return has(line, "environ.update(") || has(line, "environ |=");
}

void read_python_update(int number, std::string_view line, ScriptText& found) {
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
        if (!name.empty() && !text.empty()) {
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
    if (line.starts_with("os.environ.clear()")) {
        return true;
    }
    const bool replaces = has(line, "execve(") || has(line, "execvpe(") || has(line, "spawnve(");
    if (replaces && has(line, "{") && !has(line, "environ") && !has(line, "**")) {
        return true;
    }
    const bool starts = has(line, "subprocess") || has(line, "Popen(") || has(line, "run(") ||
                        has(line, "call(") || has(line, "exec");
    return starts && has(line, "env={") && !has(line, "environ") && !has(line, "**");
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

std::vector<std::vector<std::string>> shell_commands(std::string_view line) {
    return ShellLine().split(line);
}

ScriptText read_shell_script(const std::string& file, std::string_view text) {
    ShellScript script(file);
    for_each_line(text, [&](int number, std::string_view line) { script.line(number, line); });
    return script.finish();
}

ScriptText read_python_script(const std::string& file, std::string_view text) {
    ScriptText found;
    found.imports_torch = imports_torch(text);
    for_each_line(text, [&](int number, std::string_view line) {
        if (line.starts_with('#')) {
            return;
        }
        const ScriptLine where{file, number, std::string(line)};
        if (resets_variable(line) || starts_without(line)) {
            found.preload_resets.push_back(where);
        }
        if (opens_by_handle(line)) {
            found.handles.push_back(where);
        }
        if (has(line, "DEEPBIND")) {
            found.deepbinds.push_back(where);
        }
        if (updates_environment(line)) {
            read_python_update(number, line, found);
        } else {
            read_python_assignment(number, line, found);
        }
    });
    return found;
}

}  // namespace deft::tools::doctor
