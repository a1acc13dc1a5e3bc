// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/script_text.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>

#include "tools/doctor/command_words.h"
#include "tools/doctor/rendezvous.h"
#include "tools/doctor/script_lines.h"

namespace deft::tools::doctor {
namespace {

bool is_assignment(const std::string& word) {
    const auto equals = word.find('=');
    if (equals == word.npos || equals == 0) {
        return false;
    }
    return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                       [](unsigned char letter) { return std::isalnum(letter) || letter == '_'; });
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
        for (auto* const lines : {&found_.preload_resets, &found_.preload_doubts}) {
            std::erase_if(*lines, [&](const ScriptLine& each) { return each.line < put_back_; });
        }
        return std::move(found_);
    }

private:
    const std::string& file_;
    ScriptText found_;
    int put_back_ = 0;
    std::map<std::string, std::string> sources_;  // of variables that hold names: the line

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
        sources_[name] = text;
        // What it prints /etc/hosts says: rendezvous.h.
        if (name == "MASTER_ADDR" && (has(text, "$(hostname -i)") || has(text, "`hostname -i`"))) {
            found_.assignments.push_back({name, kOwnAddress, number});
        } else if (!has(value, "$")) {
            found_.assignments.push_back({name, value, number});
        }
    }
    void note(Removal removal, int number, const std::string& text) {
        if (removal == Removal::Yes) {
            found_.preload_resets.push_back({file_, number, text});
        } else if (removal == Removal::Perhaps) {
            found_.preload_doubts.push_back({file_, number, text});
        }
    }
    // `$v` or `${v[@]}`, which got its values in an earlier line or in this one.
    Removal removal_by_variable(const std::string& name, const std::string& text) const {
        const auto source = sources_.find(name);
        if (source != sources_.end() && names_preload(source->second)) {
            return removal_by(source->second);
        }
        if (names_preload(text)) {
            return has(text, "!") ? Removal::No : removal_by(text);
        }
        const std::string& values = source == sources_.end() ? text : source->second;
        return lists_environment(values) && !names_others(text) ? removal_by(values) : Removal::No;
    }
    // One operand of `unset` or `export -n`.
    void take_away(int number, const std::string& text, const std::string& word) {
        if (word == "PYTHONPATH") {
            found_.python_path_resets.push_back({file_, number, text});
            return;
        }
        Removal removal = word == "LD_PRELOAD" ? Removal::Yes : Removal::No;
        if (word.starts_with("${!")) {  // all names that begin so
            const auto end = word.find_first_of("@*}", 3);
            const bool ours = std::string_view("LD_PRELOAD").starts_with(word.substr(3, end - 3));
            removal = ours ? Removal::Yes : Removal::No;
        } else if (word == "$" || has(word, "$(")) {
            removal = removal_by(text);
        } else if (word.starts_with("$")) {
            const auto begin = word.find_first_not_of("${");
            const auto end = word.find_first_of("}[:", std::min(begin, word.size()));
            removal = begin == word.npos
                          ? Removal::No
                          : removal_by_variable(word.substr(begin, end - begin), text);
        }
        note(removal, number, text);
    }
    // `eval "unset X"`; `eval $(env | sed 's/^/unset /')`, and the same by `source <(...)`.
    void evaluate(int number, const std::string& text, const std::vector<std::string>& words) {
        std::string inner;
        for (std::size_t i = 1; i < words.size(); ++i) {
            inner += (i > 1 ? " " : "") + words[i];
        }
        const bool computed = inner == "$" || has(inner, "$(") || has(inner, "<");
        if (computed && has(text, "unset ")) {
            note(removal_by(text), number, text);
        } else if (words.front() == "eval" && !has(inner, "$")) {
            for (std::vector<std::string>& each : shell_commands(inner)) {
                command(number, text, std::move(each));
            }
        }
    }
    // True if the words are one of the shell's own commands on variables.
    bool builtin(int number, const std::string& text, const std::vector<std::string>& words) {
        const std::string& name = words.front();
        if (name == "unset" || name == "export" || name == "declare" || name == "typeset") {
            const bool away =
                name == "unset" || std::find(words.begin(), words.end(), "-n") != words.end();
            const bool functions = std::find(words.begin(), words.end(), "-f") != words.end();
            for (std::size_t i = 1; i < words.size(); ++i) {
                if (is_assignment(words[i])) {
                    assign(number, text, words[i]);
                } else if (away && !functions) {
                    take_away(number, text, words[i]);
                }
            }
            if (away && words.size() == 1 && has(text, "`")) {
                note(removal_by(text), number, text);
            }
            return true;
        }
        return false;
    }
    // `ulimit -n 256`, -Sn and -Hn too.
    void note_limit(int number, const std::string& text, const std::vector<std::string>& words) {
        for (std::size_t i = 1; words.front() == "ulimit" && i + 1 < words.size(); ++i) {
            const bool digits = words[i + 1].find_first_not_of("0123456789") == std::string::npos;
            const char letter = words[i].starts_with('-') ? words[i].back() : '-';
            if (digits && has("nuvf", std::string_view(&letter, 1))) {
                found_.limits.push_back({{file_, number, text},
                                         letter,
                                         std::strtoull(words[i + 1].c_str(), nullptr, 10)});
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
        if (words.front() == "for" && words.size() > 2) {
            sources_[words[1]] = text;
        }
        if (words.front() == "mapfile" || words.front() == "readarray" || words.front() == "read") {
            const auto name = std::find_if(words.rbegin(), words.rend(),
                                           [](const auto& word) { return !word.starts_with("<"); });
            sources_[*name] = text;
        }
        if (words.front() == "eval" || words.front() == "source" || words.front() == ".") {
            evaluate(number, text, words);
        }
        if (env_unsets(words, "LD_PRELOAD")) {
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

}  // namespace

std::vector<std::vector<std::string>> shell_commands(std::string_view line) {
    return ShellLine().split(line);
}

ScriptText read_shell_script(const std::string& file, std::string_view text) {
    ShellScript script(file);
    for_each_line(text,
                  [&](int number, std::string_view line, bool) { script.line(number, line); });
    return script.finish();
}

}  // namespace deft::tools::doctor
