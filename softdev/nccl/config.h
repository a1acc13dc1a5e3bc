// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <string>

namespace softdev::nccl {

// ncclConfig_t with owned strings and everything defined.
struct Config {
    bool blocking = true;
    int min_ctas = 1;
    int max_ctas = 64;
    std::string net_name;  // empty: any
    bool split_share = false;
    bool shrink_share = false;
    int traffic_class = NCCL_CONFIG_UNDEF_INT;
    std::string comm_name;
    int channels_per_net_peer = 0;  // as many as are good
};

// Reads by the size and version written in the structure, never past them. NULL: `inherited`, else
// what the application left undefined comes from `inherited`. Throws Error(ncclInvalidArgument) as
// NCCL would refuse it. Environment overrides (NCCL_COMM_BLOCKING, NCCL_MIN_CTAS, NCCL_MAX_CTAS,
// NCCL_COMM_SPLIT_SHARE_RESOURCES) are applied last.
Config read_config(const ncclConfig_t* config, const Config& inherited);

}  // namespace softdev::nccl
