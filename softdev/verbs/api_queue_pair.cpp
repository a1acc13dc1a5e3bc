// SPDX-License-Identifier: Apache-2.0
// Queue pairs and their work requests.
#include <pthread.h>

#include <cerrno>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "softdev/verbs/api.h"
#include "softdev/verbs/context.h"
#include "softdev/verbs/faults.h"
#include "softdev/verbs/operations.h"
#include "softdev/verbs/qp_states.h"
#include "softdev/verbs/queue_pair.h"
#include "softdev/verbs/report.h"

using namespace softdev::verbs;

namespace {

constexpr std::uint32_t kVendor = 0x15b3;  // of ibv_query_ece

constexpr unsigned kMostWork = 16384;
constexpr unsigned kMostInline = 1024;
constexpr std::uint64_t kSendOperations =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

const char* wrong_with(const ibv_qp_init_attr& init) {
    if (init.qp_type != IBV_QPT_RC || init.srq != nullptr) {
        return "only reliable connections without a shared receive queue are modelled";
    }
    if (init.send_cq == nullptr || init.recv_cq == nullptr) {
        return "a completion queue is missing";
    }
    if (!static_cast<Cq*>(init.send_cq)->life.alive() ||
        !static_cast<Cq*>(init.recv_cq)->life.alive()) {
        return "a completion queue has been destroyed";
    }
    const ibv_qp_cap& cap = init.cap;
    if (cap.max_send_wr > kMostWork || cap.max_recv_wr > kMostWork || cap.max_send_sge > kMostSge ||
        cap.max_recv_sge > kMostSge || cap.max_inline_data > kMostInline) {
        return "more work requests, entries or inline bytes than the device has";
    }
    return nullptr;
}

ibv_qp* make_queue_pair(ibv_pd* domain, const ibv_qp_init_attr& init) {
    auto* const pd = static_cast<Pd*>(domain);
    if (!pd->life.check("ibv_create_qp", "protection domain")) {
        errno = EINVAL;
        return nullptr;
    }
    if (const char* const wrong = wrong_with(init)) {
        return static_cast<ibv_qp*>(refuse_object(EINVAL, "ibv_create_qp: %s", wrong));
    }
    Nic& nic = nic_of(domain->context);
    auto made = std::make_unique<Qp>(nic, init);
    ibv_qp& qp = made->qp_base;
    qp.context = domain->context;
    qp.qp_context = init.qp_context;
    qp.pd = domain;
    qp.send_cq = init.send_cq;
    qp.recv_cq = init.recv_cq;
    qp.state = IBV_QPS_RESET;
    qp.qp_type = init.qp_type;
    pthread_mutex_init(&qp.mutex, nullptr);
    pthread_cond_init(&qp.cond, nullptr);
    const deft::MutexLock lock(nic.mutex);
    qp.qp_num = nic.number(*made);
    if (qp.qp_num == 0) {
        errno = EADDRINUSE;
        return nullptr;
    }
    qp.handle = qp.qp_num;
    ++pd->users;
    ++static_cast<Cq*>(init.send_cq)->users;
    ++static_cast<Cq*>(init.recv_cq)->users;
    ++nic.objects;
    return &made.release()->qp_base;
}

ibv_qp* create_extended(ibv_context* /*context*/, ibv_qp_init_attr_ex* init) {
    constexpr std::uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if ((init->comp_mask & ~known) != 0 || (init->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 ||
        ((init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 &&
         (init->send_ops_flags & ~kSendOperations) != 0)) {
        errno = EOPNOTSUPP;
        return nullptr;
    }
    // The older struct is the head of the newer one: the ABI says so.
    ibv_qp* const made =
        make_queue_pair(init->pd, *reinterpret_cast<const ibv_qp_init_attr*>(init));
    if (made != nullptr && (init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0) {
        WorkBuilder::install(*qp_of(made));
    }
    return made;
}

// The values that the mask names; what they mean is looked at by the caller.
void take_values(ibv_qp_attr& have, const ibv_qp_attr& attr, int mask) {
    const auto take = [&](int bit, auto& target, const auto& value) {
        if ((mask & bit) != 0) {
            target = value;
        }
    };
    take(IBV_QP_ACCESS_FLAGS, have.qp_access_flags, attr.qp_access_flags);
    take(IBV_QP_PKEY_INDEX, have.pkey_index, attr.pkey_index);
    take(IBV_QP_PORT, have.port_num, attr.port_num);
    take(IBV_QP_AV, have.ah_attr, attr.ah_attr);
    take(IBV_QP_PATH_MTU, have.path_mtu, attr.path_mtu);
    take(IBV_QP_DEST_QPN, have.dest_qp_num, attr.dest_qp_num);
    take(IBV_QP_RQ_PSN, have.rq_psn, attr.rq_psn);
    take(IBV_QP_MAX_DEST_RD_ATOMIC, have.max_dest_rd_atomic, attr.max_dest_rd_atomic);
    take(IBV_QP_MIN_RNR_TIMER, have.min_rnr_timer, attr.min_rnr_timer);
    take(IBV_QP_TIMEOUT, have.timeout, attr.timeout);
    take(IBV_QP_RETRY_CNT, have.retry_cnt, attr.retry_cnt);
    take(IBV_QP_RNR_RETRY, have.rnr_retry, attr.rnr_retry);
    take(IBV_QP_SQ_PSN, have.sq_psn, attr.sq_psn);
    take(IBV_QP_MAX_QP_RD_ATOMIC, have.max_rd_atomic, attr.max_rd_atomic);
}

// State and mask alone. 0 or errno.
int check_mask(const Qp& qp, const ibv_qp_attr& attr, int mask, ibv_qp_state to) {
    const std::uint32_t number = qp.qp_base.qp_num;
    if ((mask & IBV_QP_CUR_STATE) != 0 && attr.cur_qp_state != qp.now) {
        return refuse(EINVAL, "ibv_modify_qp: QP %u is in state %s, not %s", number,
                      name_of(qp.now), name_of(attr.cur_qp_state));
    }
    const auto change = transition(qp.now, to);
    if (!change) {
        return refuse(EINVAL, "ibv_modify_qp: QP %u cannot go from %s to %s", number,
                      name_of(qp.now), name_of(to));
    }
    if (const int missing = change->required & ~mask; missing != 0) {
        return refuse(EINVAL, "ibv_modify_qp: QP %u from %s to %s: %s is missing", number,
                      name_of(qp.now), name_of(to), first_name(missing));
    }
    const int known = change->required | change->optional | IBV_QP_STATE;
    if (const int surplus = mask & ~known; surplus != 0) {
        return refuse(EINVAL, "ibv_modify_qp: QP %u from %s to %s: %s may not be set", number,
                      name_of(qp.now), name_of(to), first_name(surplus));
    }
    if (const char* const wrong = bad_value(attr, mask)) {
        return refuse(EINVAL, "ibv_modify_qp: QP %u from %s to %s: the value of %s is wrong",
                      number, name_of(qp.now), name_of(to), wrong);
    }
    return 0;
}

// What only the port can tell. 0 or errno.
int check_port(const Qp& qp, const ibv_qp_attr& merged, int mask, Address& peer) {
    if ((mask & IBV_QP_PORT) != 0 && port_of(qp.qp_base.context, merged.port_num) == nullptr) {
        return refuse(EINVAL, "ibv_modify_qp: QP %u: there is no port %u", qp.qp_base.qp_num,
                      merged.port_num);
    }
    if ((mask & IBV_QP_AV) == 0) {
        return 0;
    }
    const Port& port = *port_of(qp.qp_base.context, merged.port_num);
    const ibv_port_attr attributes = port.attributes();
    if (merged.path_mtu > attributes.active_mtu || merged.ah_attr.port_num != merged.port_num) {
        return refuse(EINVAL,
                      "ibv_modify_qp: QP %u: path MTU above the port's, or another port in "
                      "the address vector",
                      qp.qp_base.qp_num);
    }
    const int error = port.resolve(merged.ah_attr, peer);
    if (error == EINVAL) {
        return refuse(EINVAL, "ibv_modify_qp: QP %u: an %s port cannot use this address vector",
                      qp.qp_base.qp_num, port.infiniband() ? "InfiniBand" : "RoCE");
    }
    return error;
}

void change_state(Qp& qp, ibv_qp_state to) {
    const ibv_qp_state from = qp.now;
    qp.now = to;
    if (to == IBV_QPS_RESET) {
        qp.enter_reset();
    } else if (to == IBV_QPS_ERR) {
        qp.enter_error();
    } else if (to == IBV_QPS_RTR) {
        qp.own = qp.port().source(qp.attr.ah_attr);
    } else if (to == IBV_QPS_RTS && from == IBV_QPS_RTR) {
        qp.requester.start();
    }
}

int modify(Qp& qp, const ibv_qp_attr& attr, int mask) {
    const deft::MutexLock lock(qp.nic.mutex);
    qp.take_posts();
    const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr.qp_state : qp.now.load();
    if (const int error = check_mask(qp, attr, mask, to); error != 0) {
        return error;
    }
    ibv_qp_attr merged = qp.attr;
    take_values(merged, attr, mask);
    Address peer = qp.peer;
    if (const int error = check_port(qp, merged, mask, peer); error != 0) {
        return error;
    }
    qp.attr = merged;
    qp.peer = peer;
    if ((mask & IBV_QP_STATE) != 0) {
        if (to != qp.now || to == IBV_QPS_RESET) {
            change_state(qp, to);
        }
        qp.qp_base.state = to;
    }
    return 0;
}

// Takes one request in: now if nobody else has the device, else it waits for who has. `half`: the
// one of the queue pair that it is for.
template <class Half, class Request, class Wr>
int post_one(Qp& qp, Half& half, std::deque<Request> Qp::*waiting, const Wr& wr) {
    const bool mine = qp.nic.mutex.try_lock();
    if (mine) {
        const deft::MutexLock lock(qp.nic.mutex, std::adopt_lock);
        qp.take_posts();
        Request made;
        {
            const deft::MutexLock entry(qp.entry);
            if (const int error = half.check(qp, wr); error != 0) {
                return error;
            }
            made = half.make(qp, wr);
        }
        qp.take(std::move(made));
        return 0;
    }
    {
        const deft::MutexLock entry(qp.entry);
        if (const int error = half.check(qp, wr); error != 0) {
            return error;
        }
        (qp.*waiting).push_back(half.make(qp, wr));
        qp.posts_wait.store(true, std::memory_order_release);
    }
    qp.nic.posted();
    return 0;
}

int post_send(ibv_qp* of, ibv_send_wr* wr, ibv_send_wr** bad) {
    Qp& qp = *qp_of(of);
    if (!qp.life.check("ibv_post_send", "queue pair")) {
        *bad = wr;
        return EINVAL;
    }
    for (; wr != nullptr; wr = wr->next) {
        if (const int error = post_one(qp, qp.requester.queue, &Qp::sends_waiting, *wr);
            error != 0) {  // those before it are posted
            *bad = wr;
            return error;
        }
    }
    return 0;
}

int post_receive(ibv_qp* of, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    Qp& qp = *qp_of(of);
    if (!qp.life.check("ibv_post_recv", "queue pair")) {
        *bad = wr;
        return EINVAL;
    }
    for (; wr != nullptr; wr = wr->next) {
        if (const int error = post_one(qp, qp.responder, &Qp::receives_waiting, *wr); error != 0) {
            *bad = wr;
            return error;
        }
    }
    return 0;
}

}  // namespace

namespace softdev::verbs {

void install_operations(Context& context) {
    context.context.ops.poll_cq = poll_cq;
    context.context.ops.req_notify_cq = request_notification;
    context.context.ops.post_send = post_send;
    context.context.ops.post_recv = post_receive;
    context.create_qp_ex = create_extended;
}

}  // namespace softdev::verbs

SOFTVERBS_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
    return make_queue_pair(pd, *init);
}

SOFTVERBS_EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
    Qp* const extended = qp_of(qp);
    return extended->wr_start != nullptr ? extended : nullptr;
}

SOFTVERBS_EXPORT int ibv_modify_qp(ibv_qp* of, ibv_qp_attr* attr, int mask) {
    Qp& qp = *qp_of(of);
    if (!qp.life.check("ibv_modify_qp", "queue pair")) {
        return EINVAL;
    }
    const bool connects = (mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_RTR;
    if (connects && inject(Fault::modify_slow)) {  // the neighbour does not answer at once
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds(Fault::modify_slow)));
    }
    return modify(qp, *attr, mask);
}

SOFTVERBS_EXPORT int ibv_query_qp(ibv_qp* of, ibv_qp_attr* attr, int /*mask*/,
                                  ibv_qp_init_attr* init) {
    Qp& qp = *qp_of(of);
    if (!qp.life.check("ibv_query_qp", "queue pair")) {
        return EINVAL;
    }
    const deft::MutexLock lock(qp.nic.mutex);
    *attr = qp.attr;
    attr->qp_state = attr->cur_qp_state = of->state = qp.now;
    attr->cap = qp.init.cap;
    *init = qp.init;
    return 0;
}

SOFTVERBS_EXPORT int ibv_destroy_qp(ibv_qp* of) {
    Qp* const qp = qp_of(of);
    if (!qp->life.check("ibv_destroy_qp", "queue pair")) {
        return EINVAL;
    }
    Nic& nic = qp->nic;
    {
        const deft::MutexLock lock(nic.mutex);
        qp->enter_reset();
        nic.remove(*qp);
        --static_cast<Pd*>(of->pd)->users;
        --static_cast<Cq*>(of->send_cq)->users;
        --static_cast<Cq*>(of->recv_cq)->users;
        --nic.objects;
        qp->life.end();
    }
    forget_events(nic, *qp);
    bury(std::unique_ptr<Qp>(qp));
    return 0;
}

// Before they are agreed, what the device has; then what both have.
SOFTVERBS_EXPORT int ibv_query_ece(ibv_qp* of, ibv_ece* ece) {
    Qp& qp = *qp_of(of);
    if (qp.nic.ece == 0) {
        return EOPNOTSUPP;
    }
    const deft::MutexLock lock(qp.nic.mutex);
    *ece = {kVendor, qp.ece != 0 ? qp.ece : qp.nic.ece, 0};
    return 0;
}

SOFTVERBS_EXPORT int ibv_set_ece(ibv_qp* of, ibv_ece* ece) {
    Qp& qp = *qp_of(of);
    if (ece->vendor_id == 0) {
        return 0;
    }
    if (qp.nic.ece == 0) {
        return EOPNOTSUPP;
    }
    const deft::MutexLock lock(qp.nic.mutex);
    if (qp.now != IBV_QPS_RESET && qp.now != IBV_QPS_INIT) {
        report("QP %u: ibv_set_ece in state %s, after what it decides", of->qp_num,
               name_of(qp.now));
        return EINVAL;
    }
    if (ece->vendor_id != kVendor || ece->comp_mask != 0) {
        return EINVAL;
    }
    qp.ece = qp.nic.ece & ece->options;
    return 0;
}

SOFTVERBS_EXPORT int ibv_query_qp_data_in_order(ibv_qp* /*qp*/, ibv_wr_opcode /*opcode*/,
                                                std::uint32_t /*flags*/) {
    return 0;
}
