// SPDX-License-Identifier: Apache-2.0
// All that is looked at of a job that has not been started.
#pragma once

#include "tools/doctor/command_facts.h"
#include "tools/doctor/facts.h"

namespace deft::tools::doctor {

// What is preloaded, NCCL, plugin, and look_at_host().
void look_at_job(Job job, Facts& facts);

// Settings, links, limits. Makes the job's environment that of this process.
void look_at_host(Job& job, Facts& facts);

}  // namespace deft::tools::doctor
