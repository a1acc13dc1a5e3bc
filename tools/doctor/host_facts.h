// SPDX-License-Identifier: Apache-2.0
// What this host says of itself: settings, links, kernel, limits, clock, GPU driver.
#pragma once

#include "tools/doctor/command_facts.h"
#include "tools/doctor/facts.h"

namespace deft::tools::doctor {

// Makes the job's environment that of this process: the functions of topology/ look there.
void adopt_environment(const Environment& environment);

SettingsFacts read_settings(const Job& job);
LinkFacts read_links(const Config& config);
HostFacts read_host(const Config& config, const Environment& environment);

// Tries to send without copying. False: this kernel takes pages one by one; `refused` is the error
// of a sandbox.
bool takes_many_pages(std::string& refused);

}  // namespace deft::tools::doctor
