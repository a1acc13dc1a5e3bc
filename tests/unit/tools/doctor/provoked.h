// SPDX-License-Identifier: Apache-2.0
// What provokes each finding, by the part of the doctor that finds it.
#pragma once

#include <functional>
#include <vector>

#include "tests/unit/tools/doctor/healthy_facts.h"

namespace deft::tools::doctor {

struct Case {
    Finding finding;
    const char* says;  // in the finding
    std::function<void(Facts&)> provoke;
};

std::vector<Case> program_cases();
std::vector<Case> process_cases();
std::vector<Case> nccl_cases();
std::vector<Case> settings_cases();
std::vector<Case> link_cases();
std::vector<Case> host_cases();
std::vector<Case> peer_cases();
std::vector<Case> record_cases();

}  // namespace deft::tools::doctor
