// SPDX-License-Identifier: Apache-2.0
// A shell's commands and words of one line, without expansions. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deft::tools::doctor {

struct ShellCommand {
    std::vector<std::string> words;
    bool captured = false;  // in `$(...)` or backquotes: the line takes what it prints
};

std::vector<ShellCommand> split_shell_line(std::string_view line);

// Their words alone.
std::vector<std::vector<std::string>> shell_commands(std::string_view line);

}  // namespace deft::tools::doctor
