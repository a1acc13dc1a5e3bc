// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace deft::tools::doctor {

struct Outcome {
    std::string text;       // for standard output
    std::string complaint;  // one line for standard error; may be empty
    int status = 0;
};

// Looks in a process of its own, prints what comes out, and returns its status. Where nothing moves
// for 60 s (a dead file server, a driver that hangs) or the process crashes, one line says at which
// step, and the status is 3.
int supervised(const char* command, const std::function<Outcome()>& look);

}  // namespace deft::tools::doctor
