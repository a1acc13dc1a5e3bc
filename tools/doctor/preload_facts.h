// SPDX-License-Identifier: Apache-2.0
// What is preloaded, by LD_PRELOAD and /etc/ld.so.preload, and what deft run would preload.
#pragma once

#include "tools/doctor/command_facts.h"
#include "tools/doctor/facts.h"

namespace deft::tools::doctor {

PreloadFacts read_preload(const Job& job);

// NCCL's settings of this environment and of NCCL's files, and what plugin NCCL would load.
PluginFacts read_plugin(const Job& job);

}  // namespace deft::tools::doctor
