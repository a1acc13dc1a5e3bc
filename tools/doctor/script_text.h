// SPDX-License-Identifier: Apache-2.0
// What a script's text says about the environment, NCCL and other programs. Pure; by lines, so a
// script that computes its commands is not understood.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/doctor/facts.h"

namespace deft::tools::doctor {

struct ScriptAssignment {
    std::string name, value;
    int line = 0;
    bool if_unset = false;  // a default, which yields to what the environment has
    bool unknown = false;   // the value is computed
};

struct ScriptCommand {
    std::vector<std::string> words;
    int line = 0;
    bool last = false;      // exec, or the last of the script: most likely the job
    bool captured = false;  // `$(...)`: the script takes what it prints
};

struct ScriptText {
    std::vector<ScriptLine> preload_resets;
    std::vector<ScriptLine> preload_doubts;  // variables go whose names are computed
    std::vector<ScriptLine> python_path_resets;
    std::vector<ScriptLine> handles;
    std::vector<ScriptLine> deepbinds;
    std::vector<ScriptLine> other_backends;  // of PyTorch, without NCCL
    std::vector<ScriptLimit> limits;
    bool imports_torch = false;  // whatever happens, and without a search path of its own
    std::vector<ScriptAssignment> assignments;  // that the job sees
    std::vector<ScriptCommand> commands;        // of a shell script
};

ScriptText read_shell_script(const std::string& file, std::string_view text);
ScriptText read_python_script(const std::string& file, std::string_view text);

}  // namespace deft::tools::doctor
