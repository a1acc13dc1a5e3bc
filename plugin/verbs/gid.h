// SPDX-License-Identifier: Apache-2.0
// Which of a port's addresses (GIDs) its queue pairs use. Pure.
#pragma once

#include <optional>

#include "deft/abi/verbs.h"
#include "topology/rdma_ports.h"

namespace deft::net {

// "0000:0000:0000:0000:0000:ffff:c000:0201", as sysfs has it.
std::optional<deft_verbs_gid_t> parse_gid(const std::string& text);

// The entry to use; NULL: none will do. `wanted`: NCCL_IB_GID_INDEX, negative where it is not set.
// On Ethernet RoCE v2 before v1, IPv4 before IPv6; never a link-local address, which is no use
// beyond one switch, nor one of another network namespace. On InfiniBand the first.
const RdmaGid* choose_gid(const RdmaPort& port, int wanted);

}  // namespace deft::net
