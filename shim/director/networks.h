// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace deft::director {

// Why lanes cannot be made beside a job with these settings; empty: they can. Versions as NCCL and
// CUDA number them (22809, 12030); the values of NCCL_LAUNCH_ORDER_IMPLICIT and
// NCCL_LAUNCH_RACE_FATAL, null where they are not set.
std::string why_no_lanes(int nccl_version, int driver_version, const char* order_implicit,
                         const char* race_fatal);

}  // namespace deft::director
