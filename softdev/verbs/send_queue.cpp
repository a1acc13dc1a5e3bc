// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/send_queue.h"

#include <algorithm>
#include <cerrno>

#include "softdev/verbs/port.h"
#include "softdev/verbs/queue_pair.h"
#include "softdev/verbs/report.h"

namespace softdev::verbs {
namespace {

constexpr unsigned kSendFlags =
    IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

bool known(ibv_wr_opcode opcode) {
    return opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool fetching(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
           opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

std::uint64_t bytes_of(const ibv_send_wr& wr) {
    std::uint64_t bytes = 0;
    for (int i = 0; i < wr.num_sge; ++i) {
        bytes += wr.sg_list[i].length;
    }
    return bytes;
}

// What the opcode asks of a request.
int check_kind(const Qp& qp, const ibv_send_wr& wr, std::uint64_t bytes) {
    const std::uint32_t number = qp.qp_base.qp_num;
    if (!known(wr.opcode) || (wr.send_flags & ~kSendFlags) != 0) {
        return refuse(EINVAL, "ibv_post_send: QP %u: opcode %d or flags 0x%x are not supported",
                      number, static_cast<int>(wr.opcode), wr.send_flags);
    }
    const bool inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
    if (inlined && fetching(wr.opcode)) {
        return refuse(EINVAL, "ibv_post_send: QP %u: a read or an atomic cannot be inline", number);
    }
    if (inlined && bytes > qp.init.cap.max_inline_data) {
        return refuse(EINVAL, "ibv_post_send: QP %u: %lu bytes inline, the limit is %u", number,
                      bytes, qp.init.cap.max_inline_data);
    }
    const bool atomic = fetching(wr.opcode) && wr.opcode != IBV_WR_RDMA_READ;
    if (atomic && (bytes != 8 || wr.num_sge != 1)) {
        return refuse(EINVAL, "ibv_post_send: QP %u: an atomic takes one entry of 8 bytes", number);
    }
    if (fetching(wr.opcode) && qp.attr.max_rd_atomic == 0) {
        return refuse(EINVAL, "ibv_post_send: QP %u: a read or an atomic, and max_rd_atomic is 0",
                      number);
    }
    return 0;
}

}  // namespace

bool SendRequest::fetches() const {
    return fetching(wr.opcode);
}

int SendQueue::check(const Qp& qp, const ibv_send_wr& wr) const {
    const std::uint32_t number = qp.qp_base.qp_num;
    if (qp.now != IBV_QPS_RTS && qp.now != IBV_QPS_ERR) {
        return refuse(EINVAL, "ibv_post_send: QP %u is in state %s", number, name_of(qp.now));
    }
    if (posted_ - freed.load(std::memory_order_acquire) >= qp.init.cap.max_send_wr) {
        return refuse(ENOMEM,
                      "ibv_post_send: QP %u: the send queue is full (%u); room comes back when a "
                      "signaled request is polled",
                      number, qp.init.cap.max_send_wr);
    }
    if (wr.num_sge < 0 || static_cast<unsigned>(wr.num_sge) > qp.init.cap.max_send_sge ||
        (wr.num_sge > 0 && wr.sg_list == nullptr)) {
        return refuse(EINVAL, "ibv_post_send: QP %u: %d entries, the limit is %u", number,
                      wr.num_sge, qp.init.cap.max_send_sge);
    }
    const std::uint64_t bytes = bytes_of(wr);
    if (bytes > kLargestMessage) {
        return refuse(EINVAL, "ibv_post_send: QP %u: %lu bytes, the port's limit is %u", number,
                      bytes, kLargestMessage);
    }
    return check_kind(qp, wr, bytes);
}

SendRequest SendQueue::make(const Qp& qp, const ibv_send_wr& wr) {
    SendRequest made;
    made.wr = wr;
    made.sge_count = static_cast<std::size_t>(wr.num_sge);
    std::copy_n(wr.sg_list, made.sge_count, made.sges.begin());
    made.length = bytes_of(wr);
    made.number = ++posted_;
    made.signaled = qp.init.sq_sig_all != 0 || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
    if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
        for (std::size_t i = 0; i < made.sge_count; ++i) {
            const char* const from = reinterpret_cast<const char*>(made.sges[i].addr);
            made.inlined.insert(made.inlined.end(), from, from + made.sges[i].length);
        }
    }
    return made;
}

void SendQueue::clear() {
    first += requests.size();
    requests.clear();
    freed.store(posted_);
}

}  // namespace softdev::verbs
