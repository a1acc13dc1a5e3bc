// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/script_text.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>

#include "tools/doctor/command_words.h"
#include "tools/doctor/rendezvous.h"
#include "tools/doctor/script_lines.h"
#include "tools/doctor/shell_line.h"
#include "tools/doctor/shell_value.h"
#include "tools/environment_loss.h"

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

class ShellScript {
public:
    ShellScript(const std::string& file, std::string_view text)
        : file_(file), file_unit_(file_unit(text)) {}

    void line(int number, std::string_view text, bool indented) {
        if (!end_of_text_.empty()) {  // of a file that the script writes
            end_of_text_ = text == end_of_text_ ? "" : end_of_text_;
            return;
        }
        indented_ = indented;
        subshell_ = open_ > 0;
        const bool begins = open_ == 0 && text.starts_with("(");
        subshells_ += begins ? 1 : 0;
        place_ = begins || subshell_ ? subshells_ : 0;
        note_parentheses(text);
        // Slurm reads such a line, whatever the shell makes of it.
        const bool exports = has(text, "--export=") || has(text, "--export ");
        if (text.starts_with("#SBATCH") && exports && !has(text, "ALL") &&
            !has(text, "LD_PRELOAD")) {
            found_.preload_resets.push_back({file_, number, std::string(text)});
        }
        for (ShellCommand& each : split_shell_line(text)) {
            captured_ = each.captured;
            command(number, std::string(text), std::move(each.words));
        }
        const std::vector<ScriptCommand>& all = found_.commands;
        if (!has(text, "|") && !all.empty() && all.back().line == number &&
            is_errand(all.back().words.front())) {
            end_of_text_ = text_handed_on(text);
        }
    }
    ScriptText finish() {
        if (!found_.commands.empty()) {
            found_.commands.back().last = true;
        }
        drop_errands();
        drop_assignments_for_others();
        // Later lines put deft back, in one way or another.
        for (auto* const lines : {&found_.preload_resets, &found_.preload_doubts}) {
            std::erase_if(*lines, [&](const ScriptLine& each) { return each.line < put_back_; });
        }
        return std::move(found_);
    }

private:
    const std::string& file_;
    const std::uint64_t file_unit_;
    ScriptText found_;
    int put_back_ = 0;
    bool indented_ = false;                       // the line
    bool subshell_ = false;                       // it stands in one that began above it
    int open_ = 0;                                // parentheses of subshells
    int subshells_ = 0;                           // that have begun
    int place_ = 0;                               // the line's subshell; 0: none
    bool captured_ = false;                       // the command
    std::string end_of_text_;                     // of a `cat >FILE <<END` that has begun
    std::map<std::string, std::string> sources_;  // of variables that hold names: the line
    std::set<std::string> kept_;                  // variables that hold what LD_PRELOAD was
    std::set<int> working_;                       // subshells that do more than errands
    static constexpr std::size_t kNoCommand = ~std::size_t{0};
    std::size_t before_ = kNoCommand;        // the command before which an assignment stands
    std::map<int, std::size_t> of_command_;  // lines of resets: the command that they are for
    std::map<int, std::size_t> for_one_;     // lines of assignments, likewise
    std::map<int, int> in_subshell_;         // lines of resets: in which subshell

    void reset(int number, const std::string& text) {
        found_.preload_resets.push_back({file_, number, text});
        if (place_ > 0) {
            in_subshell_[number] = place_;
        }
        if (before_ != kNoCommand) {
            of_command_[number] = before_;
        }
    }
    // `A=1 COMMAND` is of that command alone, which is not the job where a later one may be.
    void drop_assignments_for_others() {
        const auto& commands = found_.commands;
        const auto job = std::find_if(commands.rbegin(), commands.rend(), [](const auto& each) {
            return !is_errand(each.words.front());
        });
        const auto behind = job == commands.rend()
                                ? commands.size()
                                : static_cast<std::size_t>(commands.rend() - job);
        std::erase_if(found_.assignments, [&](const ScriptAssignment& each) {
            const auto of = for_one_.find(each.line);
            return of != for_one_.end() && of->second + 1 < behind;
        });
        std::erase_if(found_.preload_resets, [&](const ScriptLine& each) {
            const auto of = of_command_.find(each.line);
            return of != of_command_.end() && of->second + 1 < behind &&
                   !may_be_job(commands[of->second].words);
        });
    }
    static bool may_be_job(const std::vector<std::string>& words) {
        return likely_job(words) || words.front().find('/') != std::string::npos ||
               is_shell(words.front());
    }
    // What a subshell takes away is back behind it.
    void drop_errands() {
        std::erase_if(found_.preload_resets, [&](const ScriptLine& each) {
            const auto in = in_subshell_.find(each.line);
            return in != in_subshell_.end() && !working_.contains(in->second);
        });
    }
    bool names_kept(const std::string& value) const {
        return std::any_of(kept_.begin(), kept_.end(), [&](const std::string& name) {
            return has(value, "$" + name) || has(value, "${" + name);
        });
    }

    void assign(int number, const std::string& text, const std::string& word) {
        const auto equals = word.find('=');
        const std::string name = word.substr(0, equals);
        const std::string value = word.substr(equals + 1);
        if (name == "LD_PRELOAD") {
            if (names_ours(value) || names_kept(value)) {
                put_back_ = number;
            } else if (!keeps_preload(value)) {
                reset(number, text);
            }
        } else if (has(value, "$LD_PRELOAD") || has(value, "${LD_PRELOAD")) {
            kept_.insert(name);
        }
        if (name == "PYTHONPATH" && !has(value, "PYTHONPATH")) {
            found_.python_path_resets.push_back({file_, number, text});
        }
        sources_[name] = text;
        note_value(number, name, shell_value(text, name, value),
                   indented_ || conditional(text, text.find(word.substr(0, equals + 1))));
    }
    // Where ranks meet one branch often says for a job of one host: there only what is surely
    // carried out counts.
    void note_value(int number, const std::string& name, const ShellValue& value, bool perhaps) {
        using Kind = ShellValue::Kind;
        if (value.kind == Kind::Computed) {
            // What a branch may never set is still what the environment has.
            if (replaces(name) && (!perhaps || is_meeting_place(name))) {
                found_.assignments.push_back({name, "", number, false, true});
            }
        } else if (value.kind != Kind::Kept && !(perhaps && is_meeting_place(name))) {
            found_.assignments.push_back({name, value.text, number, value.kind == Kind::Default});
            if (before_ != kNoCommand) {
                for_one_[number] = before_;
            }
        }
    }
    // Not PATH and its like: what was in them is most likely still there.
    static bool replaces(const std::string& name) {
        constexpr std::string_view kOfJobs[] = {"NCCL_", "DEFT_",   "MASTER_", "CUDA_",
                                                "PET_",  "NVIDIA_", "TORCH_",  "SLURM_"};
        return name == "WORLD_SIZE" || name == "LOCAL_WORLD_SIZE" || name.ends_with("RANK") ||
               std::any_of(std::begin(kOfJobs), std::end(kOfJobs),
                           [&](std::string_view each) { return name.starts_with(each); });
    }
    // `(` at the beginning of a line until its `)`: what limits are set in there end with it.
    void note_parentheses(std::string_view text) {
        if (open_ == 0 && !text.starts_with("(")) {
            return;
        }
        char quote = 0;  // what is quoted opens and closes nothing
        char before = ' ';
        for (const char each : text) {
            const bool word_begins = before == ' ' || before == '\t';
            before = each;
            if (each == quote) {
                quote = 0;
            } else if (quote == 0 && (each == '\'' || each == '"')) {
                quote = each;
            } else if (quote == 0 && each == '#' && word_begins) {
                break;
            } else if (quote == 0) {
                open_ += each == '(' ? 1 : each == ')' ? -1 : 0;
            }
        }
        open_ = std::max(open_, 0);
    }
    // Bytes of a unit of `ulimit -f`: Bash takes KiB, POSIX and other shells blocks of 512 bytes.
    // The larger where the script does not say who reads it.
    static std::uint64_t file_unit(std::string_view text) {
        const std::vector<std::string> first =
            shebang(std::string(text.substr(0, text.find('\n'))));
        const bool posix = std::any_of(first.begin(), first.end(), [](const std::string& word) {
            return is_shell(base_name(word)) && base_name(word) != "bash";
        });
        return posix ? 512 : 1024;
    }
    void note(Removal removal, int number, const std::string& text) {
        if (removal == Removal::Yes) {
            reset(number, text);
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
        if (removal == Removal::No && !has(word, "$")) {
            note_value(number, word, {ShellValue::Kind::Computed, ""},
                       indented_ || conditional(text, text.find(word)));
        }
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
            for (ShellCommand& each : split_shell_line(inner)) {
                command(number, text, std::move(each.words));
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
        const std::string_view before = std::string_view(text).substr(0, text.find("ulimit"));
        if (subshell_ || std::count(before.begin(), before.end(), '(') >
                             std::count(before.begin(), before.end(), ')')) {
            return;
        }
        for (std::size_t i = 1; words.front() == "ulimit" && i + 1 < words.size(); ++i) {
            const bool digits = words[i + 1].find_first_not_of("0123456789") == std::string::npos;
            const char letter = words[i].starts_with('-') ? words[i].back() : '-';
            if (digits && has("nuvf", std::string_view(&letter, 1))) {
                found_.limits.push_back({{file_, number, text},
                                         letter,
                                         std::strtoull(words[i + 1].c_str(), nullptr, 10),
                                         letter == 'f' ? file_unit_ : 1024});
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
        std::size_t behind = at;
        while (behind < words.size() && is_assignment(words[behind])) {
            ++behind;
        }
        const bool errands = behind < words.size() && is_errand(words[behind]);
        before_ = behind < words.size() ? found_.commands.size() : kNoCommand;
        for (; at < behind; ++at) {
            if (!errands) {
                assign(number, text, words[at]);
            }
        }
        before_ = kNoCommand;
        const bool exec = at < words.size() && words[at] == "exec";
        at += exec ? 1 : 0;
        if (exec && at < words.size() && words[at].starts_with("-") && has(words[at], "c")) {
            reset(number, text);
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
        if (place_ > 0 && !is_errand(words.front())) {
            working_.insert(place_);
        }
        std::vector<std::string> ignored;
        const std::vector<std::string> behind = command_behind(words, ignored);
        if (env_unsets(words, "LD_PRELOAD") && (behind.empty() || !is_errand(behind.front()))) {
            reset(number, text);
        }
        // Behind a launcher too: `srun deft run -- ./train`.
        const auto ours = std::adjacent_find(words.begin(), words.end(),
                                             [](const std::string& one, const std::string& next) {
                                                 return one.ends_with("deft") && next == "run";
                                             });
        if (ours != words.end()) {
            put_back_ = number;
        }
        found_.commands.push_back({std::move(words), number, exec, captured_});
    }
};

}  // namespace

ScriptText read_shell_script(const std::string& file, std::string_view text) {
    ShellScript script(file, text);
    for_each_line(text, [&](int number, std::string_view line, bool indented) {
        script.line(number, line, indented);
    });
    return script.finish();
}

}  // namespace deft::tools::doctor
