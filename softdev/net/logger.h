// SPDX-License-Identifier: Apache-2.0
// Where the messages of this room go: the logger of whoever hosts it (softnccl), else lines on
// standard error in NCCL's form, as much as NCCL_DEBUG asks for. Unlike NCCL, which is silent
// without NCCL_DEBUG, warnings are printed by default: this is a test device.
#pragma once

#include "deft/abi/net.h"

namespace softdev::net {

// Any thread. NULL restores the one of this room.
void set_logger(deft_net_logger_t logger);
deft_net_logger_t logger();

}  // namespace softdev::net

#define SOFTNET_WARN(...)                                                                \
    ::softdev::net::logger()(DEFT_NET_LOG_WARN, DEFT_NET_SUBSYS_NET, __FILE__, __LINE__, \
                             __VA_ARGS__)
#define SOFTNET_INFO(...)                                                                   \
    ::softdev::net::logger()(DEFT_NET_LOG_INFO, DEFT_NET_SUBSYS_INIT | DEFT_NET_SUBSYS_NET, \
                             __FILE__, __LINE__, __VA_ARGS__)
