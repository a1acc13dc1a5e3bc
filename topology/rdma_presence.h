// SPDX-License-Identifier: Apache-2.0
// Who carries a job where NCCL's IB could: what the plugin asks before it shows a device.
#pragma once

#include <optional>

namespace deft {

// Where NCCL's IB could carry the job (rdma.h): true if NCCL asks for a communicator
// that is not meant for deft, so that a device of the plugin's would take it away from IB. Says
// so once.
bool left_to_rdma() noexcept;

// Says once if a connection takes a communicator away from NCCL's IB. `lane_class`: the traffic
// class is one of deft's lanes; nothing: this NCCL does not tell.
void connecting_beside_rdma(std::optional<bool> lane_class) noexcept;

}  // namespace deft
