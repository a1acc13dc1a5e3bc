// SPDX-License-Identifier: Apache-2.0
// deft run: checks everything, sets the environment, becomes the command.
#pragma once

#include <string>
#include <vector>

namespace deft::tools {

struct RunOptions {
    std::string mode;             // DEFT_MODE; empty: as configured
    bool require = false;         // DEFT_REQUIRE=1
    std::string out;              // DEFT_OUT
    std::string interfaces;       // DEFT_INTERFACES
    std::string log;              // DEFT_LOG
    std::string library;          // path of libnccl-net-deft.so; empty: find it
    bool replace_plugin = false;  // also where NCCL would load a vendor's network plugin
    bool dry_run = false;         // print what would be done
    std::vector<std::string> command;
};

// Does not return when the command was started.
int run(const RunOptions& options);

}  // namespace deft::tools
