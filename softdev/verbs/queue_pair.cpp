// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/queue_pair.h"

#include <algorithm>
#include <utility>

#include "softdev/verbs/faults.h"
#include "softdev/verbs/report.h"

namespace softdev::verbs {
namespace {

ibv_wc_opcode opcode_of(ibv_wr_opcode opcode) {
    switch (opcode) {
        case IBV_WR_RDMA_WRITE:
        case IBV_WR_RDMA_WRITE_WITH_IMM:
            return IBV_WC_RDMA_WRITE;
        case IBV_WR_RDMA_READ:
            return IBV_WC_RDMA_READ;
        case IBV_WR_ATOMIC_CMP_AND_SWP:
            return IBV_WC_COMP_SWAP;
        case IBV_WR_ATOMIC_FETCH_AND_ADD:
            return IBV_WC_FETCH_ADD;
        default:
            return IBV_WC_SEND;
    }
}

}  // namespace

const char* name_of(ibv_qp_state state) {
    switch (state) {
        case IBV_QPS_RESET:
            return "RESET";
        case IBV_QPS_INIT:
            return "INIT";
        case IBV_QPS_RTR:
            return "RTR";
        case IBV_QPS_RTS:
            return "RTS";
        case IBV_QPS_SQD:
            return "SQD";
        case IBV_QPS_SQE:
            return "SQE";
        case IBV_QPS_ERR:
            return "ERR";
        case IBV_QPS_UNKNOWN:
            break;
    }
    return "UNKNOWN";
}

Qp::Qp(Nic& of, const ibv_qp_init_attr& wanted)
    : ibv_qp_ex{}, nic(of), init(wanted), requester(*this), responder(*this) {}

Clock::duration Qp::retry_time() const {
    if (attr.timeout == 0) {  // as the standard has it: for ever
        return std::chrono::hours(24 * 365);
    }
    constexpr double unit_us = 4.096;
    const double one = unit_us * static_cast<double>(1ULL << attr.timeout);
    return std::chrono::microseconds(static_cast<long>(one * (attr.retry_cnt + 1)));
}

bool Qp::takes(const wire::Hello& hello, const Address& local, const Address& remote) const {
    const bool ready = now == IBV_QPS_RTR || now == IBV_QPS_RTS;
    if (ready && hello.source_qpn == attr.dest_qp_num && hello.ece != ece) {
        report("QP %u uses the vendor's extensions 0x%x, its peer 0x%x", qp_base.qp_num, ece,
               hello.ece);
        return false;
    }
    return ready && !responder.linked() && own && own->same_host(local) && peer.same_host(remote) &&
           hello.source_qpn == attr.dest_qp_num && hello.psn == attr.rq_psn;
}

bool Qp::complete_send(const SendRequest& request, ibv_wc_status status) {
    Completion completion;
    completion.wc = garbage_completion();
    completion.wc.wr_id = request.wr.wr_id;
    completion.wc.status = status;
    completion.wc.qp_num = qp_base.qp_num;
    if (status == IBV_WC_SUCCESS) {
        completion.wc.opcode = opcode_of(request.wr.opcode);
        completion.wc.wc_flags = 0;
        if (request.fetches()) {
            completion.wc.byte_len = static_cast<std::uint32_t>(request.length);
        }
    }
    completion.owner = this;
    completion.freed = &requester.queue.freed;
    completion.up_to = request.number;
    return static_cast<Cq*>(qp_base.send_cq)->push(completion);
}

bool Qp::complete_receive(const ReceiveRequest& request, ibv_wc wc) {
    Completion completion;
    completion.solicited = wc.status != IBV_WC_SUCCESS || responder.solicited();
    completion.wc = wc;
    completion.wc.wr_id = request.wr_id;
    completion.wc.qp_num = qp_base.qp_num;
    completion.owner = this;
    completion.freed = &responder.freed;
    completion.up_to = request.number;
    // Who waits for an event would poll too early.
    if (qp_base.recv_cq->channel == nullptr && inject(Fault::complete_late)) {
        completion.not_before =
            Clock::now() + std::chrono::milliseconds(milliseconds(Fault::complete_late));
    }
    return static_cast<Cq*>(qp_base.recv_cq)->push(completion);
}

void Qp::flush_sends(ibv_wc_status first) {
    ibv_wc_status status = first;
    for (const SendRequest& request : requester.queue.requests) {
        if (!complete_send(request, status)) {
            cq_lost(qp_base.send_cq);
            break;
        }
        status = IBV_WC_WR_FLUSH_ERR;
    }
    // Room comes back as the completions are polled, not now.
    requester.queue.first += requester.queue.requests.size();
    requester.queue.requests.clear();
}

void Qp::flush_receives() {
    ibv_wc wc = garbage_completion();
    wc.status = IBV_WC_WR_FLUSH_ERR;
    for (const ReceiveRequest& request : responder.requests) {
        if (!complete_receive(request, wc)) {
            cq_lost(qp_base.recv_cq);
            break;
        }
    }
    responder.requests.clear();
}

void Qp::take(SendRequest&& request) {
    if (now == IBV_QPS_ERR) {
        if (!complete_send(request, IBV_WC_WR_FLUSH_ERR)) {
            cq_overrun(qp_base.send_cq);
        }
    } else if (now == IBV_QPS_RTS) {
        requester.queue.requests.push_back(std::move(request));
        requester.posted();
    }
}

void Qp::take(ReceiveRequest&& request) {
    if (now == IBV_QPS_RESET) {
        return;  // since it was posted
    }
    responder.requests.push_back(std::move(request));
    if (now == IBV_QPS_ERR) {
        enter_error();  // flushes it
    } else {
        responder.resume();
    }
}

void Qp::take_posts() {
    if (!posts_wait.load(std::memory_order_acquire)) {
        return;
    }
    std::deque<SendRequest> sends;
    std::deque<ReceiveRequest> receives;
    {
        const deft::MutexLock lock(entry);
        posts_wait.store(false, std::memory_order_relaxed);
        sends.swap(sends_waiting);
        receives.swap(receives_waiting);
    }
    for (ReceiveRequest& request : receives) {
        take(std::move(request));
    }
    for (SendRequest& request : sends) {
        take(std::move(request));
    }
}

void Qp::enter_error(ibv_wc_status first) {
    now = IBV_QPS_ERR;
    requester.close();
    responder.close();
    if (inject(Fault::flush_lost)) {
        requester.queue.first += requester.queue.requests.size();
        requester.queue.requests.clear();
        responder.requests.clear();
        return;
    }
    flush_sends(first);
    flush_receives();
}

void Qp::enter_reset() {
    now = IBV_QPS_RESET;
    requester.close();
    responder.close();
    static_cast<Cq*>(qp_base.send_cq)->drop(this);
    static_cast<Cq*>(qp_base.recv_cq)->drop(this);
    {
        const deft::MutexLock lock(entry);
        sends_waiting.clear();
        receives_waiting.clear();
        requester.queue.clear();
        responder.clear();
    }
    attr = {};
    own.reset();
}

void Qp::event(ibv_event_type type) {
    ibv_async_event event{};
    event.element.qp = &qp_base;
    event.event_type = type;
    nic.post_event(event);
}

void Qp::cq_lost(ibv_cq* cq) {
    if (!static_cast<Cq*>(cq)->first_loss()) {
        return;
    }
    report("CQ of %d entries overrun by QP %u", cq->cqe, qp_base.qp_num);
    ibv_async_event broken{};
    broken.element.cq = cq;
    broken.event_type = IBV_EVENT_CQ_ERR;
    nic.post_event(broken);
}

void Qp::cq_overrun(ibv_cq* cq) {
    cq_lost(cq);
    event(IBV_EVENT_QP_FATAL);
    enter_error();
}

}  // namespace softdev::verbs
