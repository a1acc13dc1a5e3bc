// SPDX-License-Identifier: Apache-2.0
// The UCX module, libdeft-ucx.so, opened where links over UCX were asked for.
#pragma once

#include <string>

#include "deft/abi/ucx_module.h"

namespace deft::net {

// What keeps UCX out of this process, or an empty string: an environment in which it would change
// the process that loads it (base/ucx_environment.h).
std::string ucx_obstacle();

// That of this process: opened at the first call, constant from then on; NULL and the cause. Next
// to this library, or where the loader looks. Any thread.
const deft_ucx_module_t* process_ucx_module(std::string& problem);

}  // namespace deft::net
