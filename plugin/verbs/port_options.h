// SPDX-License-Identifier: Apache-2.0
// What the queue pairs of a port are made with: its address, and what the operator has told NCCL
// about the fabric, which holds for deft's packets as for NCCL's.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "plugin/verbs/queue_pair.h"
#include "topology/rdma_ports.h"

namespace deft::net {

using NcclSetting = std::function<std::optional<std::string>(const char* name)>;

// NCCL_IB_GID_INDEX, NCCL_IB_TC, NCCL_IB_SL, NCCL_IB_PKEY, as `setting` knows them; a value that is
// no number, or out of range, is as none, which is what NCCL makes of it. Nothing and the cause:
// the port has no address that a queue pair could use. Pure but for `setting`.
std::optional<VerbsQueuePair::Options> options_of(const RdmaPort& port, const NcclSetting& setting,
                                                  std::string& problem);

}  // namespace deft::net
