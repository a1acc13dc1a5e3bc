// SPDX-License-Identifier: Apache-2.0
// The RDMA ports that connections of this process drive.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/verbs/domain.h"
#include "plugin/verbs/port_options.h"
#include "topology/interfaces.h"
#include "topology/rdma_ports.h"

namespace deft::net {

// Constant once made.
struct VerbsPort {
    std::string name;         // "mlx5_0:1"
    const char* kind = "ib";  // RdmaPort::kind()
    std::int64_t speed_mbps = 0;
    bool ethernet = false;
    deft_verbs_gid_t gid{};
    int prefix = 0;  // bits of the GID that its network has in common; 0: not known
    std::vector<std::string> interfaces;  // network interfaces that share its wire
    VerbsQueuePair::Options options;
    std::shared_ptr<VerbsDomain> domain;  // of its device, shared by the device's ports

    Carrier carrier() const { return domain->context().carrier(options.port); }
};
using VerbsPorts = std::vector<std::shared_ptr<const VerbsPort>>;

// Opens those of `ports` that are usable. `links`: of this host, whose networks the GIDs belong to.
// What cannot be opened is left out, and its cause added to `problems`. Some milliseconds each.
VerbsPorts open_verbs_ports(const VerbsLibrary& library, const std::vector<RdmaPort>& ports,
                            const NcclSetting& setting, const std::vector<Interface>& links,
                            std::vector<std::string>& problems);

// Those of this process: with DEFT_RDMA=replace, where NCCL's IB could carry the job; else none.
// Opened at the first call, then constant. Any thread.
const VerbsPorts& process_verbs_ports();

}  // namespace deft::net
