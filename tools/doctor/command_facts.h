// SPDX-License-Identifier: Apache-2.0
// What a command line comes to: wrappers, scripts, programs, and the environment that the job gets.
// Nothing is started.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/doctor/facts.h"
#include "tools/environment.h"

namespace deft::tools::doctor {

struct Job {
    CommandFacts command;
    Environment environment;
    std::map<std::string, std::string> origins;  // variables that the command sets: "job.sh:3"
    std::string python;                          // the interpreter; empty: no Python job
    std::string library;                         // deft run --library
    bool replace_vendor = false;                 // deft run --plugin
};

// `words` may be empty: then only the environment counts.
Job read_command(const std::vector<std::string>& words, const Environment& environment);

// The facts of one program, as found in the PATH of this environment.
ProgramFacts read_program(const std::string& word, const Environment& environment);

}  // namespace deft::tools::doctor
