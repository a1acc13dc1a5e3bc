// SPDX-License-Identifier: Apache-2.0
// What the plugin would find of UCX on this host (docs/ucx.md).
#pragma once

#include <string>

#include "base/config.h"
#include "tools/environment.h"
#include "topology/discovery/machine.h"

namespace deft::tools {

// `library`: libnccl-net-deft.so or the guest, next to which the module lies; empty: that of this
// command. `prepares`: `deft run` starts the job, so only what contradicts it counts. Loads UCX in
// a process of its own, where DEFT_UCX=on and nothing else is in the way.
discovery::Ucx read_ucx(const Config& config, const Environment& environment, bool prepares,
                        const std::string& library);

// What keeps UCX out of a job with this environment, as one line; empty: nothing.
std::string ucx_contradiction(const Environment& environment);

// This host, with its links over UCX, as `deft run` would have them in this shell.
discovery::Machine this_host();

}  // namespace deft::tools
