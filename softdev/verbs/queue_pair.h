// SPDX-License-Identifier: Apache-2.0
// A reliable-connection queue pair.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "softdev/verbs/completion.h"
#include "softdev/verbs/netdev.h"
#include "softdev/verbs/nic.h"
#include "softdev/verbs/requester.h"
#include "softdev/verbs/responder.h"
#include "softdev/verbs/work_builder.h"

namespace softdev::verbs {

const char* name_of(ibv_qp_state state);

struct Qp : ibv_qp_ex {
    Qp(Nic& of, const ibv_qp_init_attr& wanted);

    Life life;
    Nic& nic;
    /// What was posted while others had Nic::mutex: who posts waits for no transfer, as with a
    /// card. Held for that alone; taken behind Nic::mutex, if both are.
    deft::Mutex entry;
    std::deque<SendRequest> sends_waiting DEFT_GUARDED_BY(entry);
    std::deque<ReceiveRequest> receives_waiting DEFT_GUARDED_BY(entry);
    std::atomic<bool> posts_wait{false};
    /// Written under Nic::mutex. ibv_qp::state is what the program last asked for.
    std::atomic<ibv_qp_state> now{IBV_QPS_RESET};
    // All under Nic::mutex.
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    Address peer;
    std::optional<Address> own;
    std::uint32_t ece = 0;  ///< the vendor's extensions that were agreed with the peer
    Requester requester;
    Responder responder;
    std::atomic<unsigned> events_got{0};
    WorkBuilder builder;  ///< of the program's thread, between ibv_wr_start and ibv_wr_complete

    const Port& port() const { return nic.ports()[attr.port_num - 1U]; }
    /// Until a request fails: all tries of attr.timeout.
    Clock::duration retry_time() const;
    /// Whether a connection to this queue pair is from its peer, and it may receive.
    bool takes(const wire::Hello& hello, const Address& local, const Address& remote) const;
    /// What was posted gets into the queues, behind what is there. Before anything else is done
    /// with them.
    void take_posts();
    /// One that has room: it is sent, or flushed.
    void take(SendRequest&& request);
    void take(ReceiveRequest&& request);
    /// Flushes both queues. The oldest send request gets `first`.
    void enter_error(ibv_wc_status first = IBV_WC_WR_FLUSH_ERR);
    /// As made: queues empty, no completion left.
    void enter_reset();
    void event(ibv_event_type type);
    /// No room for a completion: the completion queue is lost, and this queue pair with it.
    void cq_overrun(ibv_cq* cq);

    /// False: the completion queue was full.
    bool complete_send(const SendRequest& request, ibv_wc_status status);
    bool complete_receive(const ReceiveRequest& request, ibv_wc wc);

private:
    /// Tells of a completion queue that had no room, once.
    void cq_lost(ibv_cq* cq);
    void flush_sends(ibv_wc_status first);
    void flush_receives();
};

inline Qp* qp_of(ibv_qp* qp) {
    // ibv_qp is the first member of ibv_qp_ex: the ABI says so.
    return static_cast<Qp*>(reinterpret_cast<ibv_qp_ex*>(qp));
}

}  // namespace softdev::verbs
