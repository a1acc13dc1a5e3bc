// SPDX-License-Identifier: Apache-2.0
// The host's RDMA ports, and whether NCCL's own IB transport carries the job. deft's plugin must
// not take a job away from it: NCCL gives a communicator to the first external plugin that has a
// device, whatever its speed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/interfaces.h"
#include "topology/rdma_ports.h"
#include "topology/verbs.h"

namespace deft {

// True if NCCL_IB_HCA (a list of NAME or NAME:PORT, prefixes; '^' in front excludes, '=' means
// exact names) takes this port. Pure.
bool hca_selected(std::string_view list, std::string_view device, int port);

enum class RdmaUse {
    None,    // NCCL's IB would not carry the job: there is nothing to leave to it
    Aside,   // NCCL's IB carries the job, deft's links serve lanes
    Replace  // deft's links carry the job, though NCCL's IB could
};

struct RdmaChoice {
    RdmaUse use = RdmaUse::None;
    std::vector<RdmaPort> ports;
    std::string reason;  // for people: what decided
    // DEFT_RDMA=replace: deft's links are the usable ports too. Else Replace means TCP alone.
    bool drives_ports = false;

    std::string usable_ports() const;  // "mlx5_0:1, mlx5_1:1"
    // Under Replace, for people: "deft's RDMA and TCP links".
    const char* replacement() const;
    // The link's wire is that of a usable port: NCCL's IB has it.
    bool shares_wire(const Interface& link) const;
};

// What decides beside the ports.
struct RdmaSettings {
    bool replace = false;  // DEFT_RDMA
    bool verbs = true;     // libibverbs can be opened
    // What libibverbs can drive. Nothing: it was not asked.
    std::optional<std::vector<VerbsDevice>> devices;
    // NCCL's, where they are set.
    std::optional<std::string> net;         // NCCL_NET
    std::optional<std::string> ib_disable;  // NCCL_IB_DISABLE
    std::optional<std::string> ib_hca;      // NCCL_IB_HCA
};

// Pure.
RdmaChoice choose_rdma(std::vector<RdmaPort> ports, const RdmaSettings& settings);
// The same for ports and settings of this process, as they are now. `sysfs`, `replace`: DEFT_SYSFS,
// DEFT_RDMA.
RdmaChoice choose_rdma(const std::string& sysfs, bool replace);
// Where sysfs is, by DEFT_SYSFS.
std::string sysfs_root(const std::string& sysfs);
// Of this process: DEFT_RDMA, DEFT_SYSFS. Made at the first call, then constant. Any thread.
const RdmaChoice& process_rdma();

// Why a link is not among them.
extern const char* const kWireOfRdma;

// Of links that NCCL's IB carries the job next to: those that share its wire are skipped, and the
// two fastest of them are reserves. Pure.
void keep_apart(const RdmaChoice& rdma, InterfaceSelection& selection);

// Links that deft drives: process_interfaces(), and where NCCL's IB carries the job none of those
// that share its wire, unless DEFT_INTERFACES names them.
InterfaceSelection process_links();

}  // namespace deft
