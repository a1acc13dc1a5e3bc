// SPDX-License-Identifier: Apache-2.0
// The built-in transport "Socket": plain TCP over one interface per connection, to be what NCCL's
// own is, as the baseline other plugins are compared with.
#pragma once

#include "deft/abi/net.h"

namespace softdev::net {

const deft_net_v12_t* socket_table();

}  // namespace softdev::net
