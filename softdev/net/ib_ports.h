// SPDX-License-Identifier: Apache-2.0
// RDMA ports of a host that has none: a tree in sysfs's form, made by a test and named by
// SOFTDEV_SYSFS, shows them, and the transport "IB" uses them as NCCL's does the real ones.
//
//   class/infiniband/DEVICE/ports/N/{state,link_layer,rate,gid_attrs/ndevs/I}
//   class/infiniband/DEVICE/device/net/INTERFACE
//
// Bytes go over the interface of the port (that of its first GID, or of its card), and where none
// is named, over the one that NCCL would take for its bootstrap. NCCL_IB_DISABLE, NCCL_IB_HCA.
#pragma once

#include <vector>

#include "softdev/net/interfaces.h"

namespace softdev::net {

// Active ports that NCCL_IB_HCA takes, one interface each; none without SOFTDEV_SYSFS, and none
// where NCCL_IB_DISABLE is set.
std::vector<Interface> find_ib_ports();

}  // namespace softdev::net
