// SPDX-License-Identifier: Apache-2.0
// What the words of a command line and of a script's first line mean. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deft::tools::doctor {

std::string_view base_name(std::string_view path);
bool is_shell(std::string_view name);
bool is_python(std::string_view name);
// Starts the job's own program, which stands somewhere among its operands.
bool is_launcher(std::string_view name);

// A program that is surely not the job: what a script looks round, copies and tidies up with.
bool is_errand(std::string_view word);

// Whether these words of srun start the job, `likely` or by what they name, on more than one host
// of an allocation of several, as far as they tell.
bool srun_of_hosts(const std::vector<std::string>& words, bool likely);

// `env -u NAME`, -uNAME and --unset=NAME.
bool env_unsets(const std::vector<std::string>& words, std::string_view variable);

// So likely the job that losing the environment there matters.
bool likely_job(const std::vector<std::string>& words);

// The same of a text among the words, too: `sh -c TEXT`.
bool likely_inside(const std::vector<std::string>& words);

// Whether words, or a text among them, put deft back: `deft run`, or a preload of its library.
bool brings_deft(const std::vector<std::string>& words);

// The words of a script's first line; empty: it has no "#!".
std::vector<std::string> shebang(const std::string& text);

// What a command line of Python starts.
struct PythonCall {
    std::string ignores;  // the option by which it ignores PYTHONPATH or its sites
    std::string code;     // -c
    std::string module;   // -m
    std::string script;
};
PythonCall python_call(const std::vector<std::string>& words);

}  // namespace deft::tools::doctor
