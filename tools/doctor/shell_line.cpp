// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/shell_line.h"

#include <algorithm>
#include <utility>

namespace deft::tools::doctor {
namespace {

// Splits into commands and words as a shell does, as far as one line tells.
class ShellLine {
public:
    std::vector<ShellCommand> split(std::string_view line) {
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
            } else if (letter == ';' || letter == '|' || letter == '&') {
                end_command();
            } else if (letter == '(' || letter == ')' || letter == '`') {
                end_command();
                bracket(letter, i > 0 && line[i - 1] == '$');
            } else {
                word_ += letter;
                in_word_ = true;
            }
        }
        end_command();
        return std::move(commands_);
    }

private:
    std::vector<ShellCommand> commands_;
    std::vector<std::string> words_;
    std::string word_;
    bool in_word_ = false;
    char quote_ = '\0';
    int captured_ = 0;  // parentheses that are open from a `$(` on
    bool backquoted_ = false;

    void bracket(char letter, bool behind_dollar) {
        if (letter == '`') {
            backquoted_ = !backquoted_;
        } else if (letter == ')') {
            captured_ = std::max(captured_ - 1, 0);
        } else if (behind_dollar || captured_ > 0) {
            ++captured_;
        }
    }
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
            commands_.push_back({std::move(words_), captured_ > 0 || backquoted_});
        }
        words_.clear();
    }
};

}  // namespace

std::vector<ShellCommand> split_shell_line(std::string_view line) {
    return ShellLine().split(line);
}

std::vector<std::vector<std::string>> shell_commands(std::string_view line) {
    std::vector<std::vector<std::string>> commands;
    for (ShellCommand& each : split_shell_line(line)) {
        commands.push_back(std::move(each.words));
    }
    return commands;
}

}  // namespace deft::tools::doctor
