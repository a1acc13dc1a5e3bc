// SPDX-License-Identifier: Apache-2.0
// The UCX devices that connections of this process drive.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/core/port.h"
#include "plugin/ucx/device.h"
#include "plugin/ucx/ucx_path.h"
#include "topology/interfaces.h"
#include "topology/rdma_ports.h"

namespace deft::net {

// Constant once made.
struct UcxPort final : Port {
    std::shared_ptr<UcxDevice> device;

    Capabilities capabilities() const override { return UcxPath::kCapabilities; }
    std::shared_ptr<Domain> registers_in() const override { return device; }
    Carrier carrier() const override { return {}; }  // UCX does not tell
    std::unique_ptr<Handshake> begin(PathRole role, UniqueFd socket, bool flushes) const override;
};
using UcxPorts = std::vector<std::shared_ptr<const UcxPort>>;

// One port for each of `names`, as in DEFT_UCX_DEVICES; "": one for all that UCX finds. Their
// speeds and wires are those of `links` and `rdma` with the same names. What cannot be opened is
// left out, and `problem` says why. Milliseconds each.
UcxPorts open_ucx_ports(const deft_ucx_module_t& module, std::string_view names,
                        const std::vector<Interface>& links, const std::vector<RdmaPort>& rdma,
                        std::string& problem);

// Those of this process: none but with DEFT_UCX=on. Opened at the first call, then constant. Any
// thread.
const UcxPorts& ucx_ports();

}  // namespace deft::net
