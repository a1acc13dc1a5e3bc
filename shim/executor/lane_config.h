// SPDX-License-Identifier: Apache-2.0
// ncclConfig_t as the loaded library knows it.
#pragma once

#include <cstddef>

#include "shim/executor/lanes.h"

namespace deft::executor {

// The bytes of a ncclConfig_t: offsets as in nccl.h 2.28, fields newer than `version` not set. With
// room for what later releases add.
struct ConfigBytes {
    alignas(8) unsigned char bytes[256] = {};
    deft_nccl_config_t* get() { return reinterpret_cast<deft_nccl_config_t*>(bytes); }
};

// False if a library of this version has no configuration (before 2.14).
bool make_config(int version, const LaneConfig& config, ConfigBytes& out);

// What a configuration of the job's chooses; null: it has none.
ConfigChoices choices_of(const deft_nccl_config_t* config) noexcept;
// The network that a configuration of the job's names; null: none.
const char* network_of(const deft_nccl_config_t* config) noexcept;
// Children of its communicator are asked to share its network.
bool shares(const deft_nccl_config_t* config) noexcept;
// A copy of the job's configuration (null: NCCL's defaults) that names this network, which must
// outlive the communicator's making. False if a library of this version cannot (before 2.17), or
// what the job gives is no configuration.
bool name_network(const deft_nccl_config_t* config, int version, const char* network,
                  ConfigBytes& out) noexcept;

}  // namespace deft::executor
