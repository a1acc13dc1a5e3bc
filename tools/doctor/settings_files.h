// SPDX-License-Identifier: Apache-2.0
// What settings name: the files that a job reads, the names that it writes to, and the lines of a
// configuration file next to each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config_file.h"
#include "topology/interfaces.h"

namespace deft::tools::doctor {

// Why the network plugin would not use these measurements (DEFT_PROBE), with what helps: "what;
// remedy". Empty: it would. `now`, `written`: seconds since 1970.
std::string probe_problem(std::string_view text, std::int64_t written, std::int64_t now,
                          const std::vector<Interface>& own);

// A part of a file's name that looks like one that is replaced, and is none: "%x". Empty: there is
// none.
std::string unreplaced_part(std::string_view pattern);

// Lines that hold for the job and take each other's effect away.
std::vector<std::string> contradictions(const ConfigFile& file);

}  // namespace deft::tools::doctor
