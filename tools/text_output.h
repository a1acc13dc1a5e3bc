// SPDX-License-Identifier: Apache-2.0
// What the command prints: results to standard output, complaints to standard error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deft::tools {

// Exit codes of the command. `deft run` ends as its command does once that has started; 125 to 127
// mean what they mean for env(1), nohup(1) and timeout(1).
enum ExitCode : int {
    kSuccess = 0,
    kProblem = 1,           // the question was answered, and the answer is that something is wrong
    kUsage = 2,             // the command line makes no sense
    kNotStarted = 125,      // deft run: configuration or library wrong, nothing was started
    kNotExecutable = 126,   // deft run: the command exists and cannot be executed
    kCommandNotFound = 127  // deft run: no such command
};

// Writes `text` to standard output and returns kSuccess. A reader that has gone away (`| head`) is
// no error; a full disk is: one line, kProblem.
int print(std::string_view text);

// One line "deft: <text>" on standard error, with control characters made visible.
void complain(std::string_view text);

// `text` with control characters and invalid UTF-8 replaced, so that a file cannot drive the
// terminal.
std::string printable(std::string_view text);

// Ascending numbers as "0, 2-5, 9".
std::string ranges(const std::vector<std::int64_t>& sorted);

// `text` as one word of a POSIX shell.
std::string shell_quoted(std::string_view text);

}  // namespace deft::tools
