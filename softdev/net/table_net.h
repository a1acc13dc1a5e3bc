// SPDX-License-Identifier: Apache-2.0
// Net on top of a plugin table of any version, with the behaviour of NCCL's adapters for old ones.
#pragma once

#include <memory>
#include <string>

#include "softdev/net/net.h"

namespace softdev::net {

inline constexpr int kOldestAbi = 6;
inline constexpr int kNewestAbi = 12;

// `table` is what the symbol ncclNetPlugin_v<abi> points to and must outlive the result. Where
// nccl_version made v10 its native version (2.26, 2.27) connect gets a config on the stack. NULL
// for an unknown abi.
std::unique_ptr<Net> make_table_net(int abi, const void* table, bool external, std::string file,
                                    int nccl_version);

}  // namespace softdev::net
