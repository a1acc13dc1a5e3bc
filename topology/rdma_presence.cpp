// SPDX-License-Identifier: Apache-2.0
#include "topology/rdma_presence.h"

#include "base/log.h"
#include "base/presence.h"
#include "topology/rdma.h"

namespace deft {

bool left_to_rdma() noexcept {
    Presence& presence = Presence::process();
    if (presence.job_on_deft.load(std::memory_order_acquire) ||
        presence.lanes_on_deft.load(std::memory_order_acquire) ||
        presence.asked_early.load(std::memory_order_acquire)) {
        return false;
    }
    try {
        const RdmaChoice& rdma = process_rdma();
        if (rdma.use != RdmaUse::Aside) {
            return false;
        }
        presence.plugin_declined.store(true, std::memory_order_release);
        const char* const reason =
            presence.job_on_ib.load(std::memory_order_acquire)
                ? "a communicator is made past the hooks, by dlsym on a handle as in vLLM and JAX, "
                  "and there will be no lanes"
                : presence.not_on_ib.load(std::memory_order_acquire);
        DEFT_WARN_ONCE(
            "RDMA is active (%s): the job is left to NCCL's IB and deft's network plugin shows no "
            "device (%s, DEFT_RDMA=aside); DEFT_RDMA=replace has deft's links carry it",
            rdma.usable_ports().c_str(),
            reason != nullptr ? reason : "the hooks are not at work: `deft run` preloads them");
    } catch (...) {
        // Nothing can be said or looked up: NCCL's own choice is the safe one.
    }
    return true;
}

void connecting_beside_rdma(std::optional<bool> lane_class) noexcept {
    Presence& presence = Presence::process();
    if (presence.job_on_deft.load(std::memory_order_acquire) ||
        lane_class.value_or(presence.lanes_on_deft.load(std::memory_order_acquire))) {
        return;
    }
    try {
        if (const RdmaChoice& rdma = process_rdma(); rdma.use == RdmaUse::Aside) {
            DEFT_WARN_ONCE(
                "RDMA is active (%s), but deft's TCP links carry a communicator that is made past "
                "the hooks (dlsym on a handle, as vLLM and JAX do): let the job open "
                "libnccl-net-deft.so in place of libnccl.so.2 (vLLM: VLLM_NCCL_SO_PATH), or set "
                "NCCL_NET=IB, which gives up lanes",
                rdma.usable_ports().c_str());
        }
    } catch (...) {
    }
}

}  // namespace deft
