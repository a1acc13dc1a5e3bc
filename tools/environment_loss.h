// SPDX-License-Identifier: Apache-2.0
// Programs that start their command without the environment they were given: deft gets lost there.
#pragma once

#include <string>
#include <vector>

namespace deft::tools {

// One line, with the remedy, if the program of this command line hands no LD_PRELOAD to what it
// starts: ssh, sudo, docker, `env -i` and their like, by name or by path. Empty: it hands it on, or
// the command line itself names deft or LD_PRELOAD again.
std::string environment_loss(const std::vector<std::string>& command);

// The command that a program of this command line starts in its own place, with the environment it
// was given: behind nice, timeout, numactl, `env NAME=VALUE` and their like; behind `su -c TEXT` a
// shell with the text. Empty: it is none of them. What `env` sets goes to `assignments`, as
// "NAME=VALUE".
std::vector<std::string> command_behind(const std::vector<std::string>& command,
                                        std::vector<std::string>& assignments);

}  // namespace deft::tools
