// SPDX-License-Identifier: Apache-2.0
// deft run: checks everything, sets the environment, becomes the command.
#pragma once

#include <string>
#include <vector>

#include "tools/environment.h"

namespace deft::tools {

struct RunOptions {
    std::string mode;             // DEFT_MODE; empty: as configured
    bool require = false;         // DEFT_REQUIRE=1
    std::string out;              // DEFT_OUT
    std::string interfaces;       // DEFT_INTERFACES
    std::string log;              // DEFT_LOG
    std::string library;          // path of libnccl-net-deft.so; empty: find it
    bool replace_plugin = false;  // also where NCCL would load a vendor's network plugin
    bool dry_run = false;         // say what would be done (tools/doctor/dry_run.h)
    std::vector<std::string> command;
};

// What `deft run` would do. Nothing is started, and no folder is made.
struct Launch {
    Environment before, after;     // the environment as it is, and that of the command
    std::string library;           // that is preloaded; empty: none is
    bool central_mistake = false;  // a wrong /etc/deft/deft.conf: the command runs without deft
    bool off = false;              // DEFT_MODE=off
};

// Checks everything, and complains as `deft run` does. Anything but 0 is the exit code with which
// `deft run` would refuse to start.
int prepare(const RunOptions& options, Launch& launch);

// Does not return when the command was started.
int run(const RunOptions& options);

// The variables that a launch changes and the command, as one line for a shell.
std::string shell_line(const RunOptions& options, const Launch& launch);

// Whether `deft run` makes the folder that DEFT_OUT names.
bool makes_folder(const RunOptions& options, const Launch& launch);

}  // namespace deft::tools
