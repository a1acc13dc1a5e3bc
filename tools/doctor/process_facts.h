// SPDX-License-Identifier: Apache-2.0
// A running process and those that it has started, by /proc.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/facts.h"
#include "tools/environment.h"

namespace deft::tools::doctor {

// The process and its descendants, itself first. `started`: what was started to find out.
std::vector<ProcessFacts> read_processes(int pid, std::vector<std::string>& started);

// Which of them speaks for the job: the first that has NCCL, else the first; 0: none can be read.
int speaker(const std::vector<ProcessFacts>& processes);

// What a process was started with. Empty if it cannot be read.
Environment environment_of(int pid);
std::vector<std::string> words_of(int pid);

// Enters the process's network namespace. False: it is another one, and this user may not.
bool enter_network(int pid);

}  // namespace deft::tools::doctor
