// SPDX-License-Identifier: Apache-2.0
// The built-in transport "Socket": plain TCP over one interface per connection, to be what NCCL's
// own is, as the baseline other plugins are compared with. And "IB", for hosts that have RDMA ports
// (ib_ports.h): the same over the interfaces of those.
#pragma once

#include "deft/abi/net.h"

namespace softdev::net {

const deft_net_v12_t* socket_table();
const deft_net_v12_t* ib_table();

}  // namespace softdev::net
