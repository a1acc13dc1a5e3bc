// SPDX-License-Identifier: Apache-2.0
// ncclConfig_t as the loaded library knows it.
#pragma once

#include <cstddef>

#include "shim/executor/lanes.h"

namespace deft::executor {

// The bytes of a ncclConfig_t: offsets as in nccl.h 2.28, fields newer than `version` not set.
struct ConfigBytes {
    alignas(8) unsigned char bytes[128] = {};
    deft_nccl_config_t* get() { return reinterpret_cast<deft_nccl_config_t*>(bytes); }
};

// False if a library of this version has no configuration (before 2.14).
bool make_config(int version, const LaneConfig& config, ConfigBytes& out);

}  // namespace deft::executor
