// SPDX-License-Identifier: Apache-2.0
// Completion channels and queues, and events.
#include <pthread.h>

#include <cerrno>
#include <memory>

#include "softdev/verbs/api.h"
#include "softdev/verbs/completion.h"
#include "softdev/verbs/context.h"
#include "softdev/verbs/operations.h"
#include "softdev/verbs/queue_pair.h"
#include "softdev/verbs/report.h"

using namespace softdev::verbs;

namespace {

// Destroying an object waits for the acknowledgement of its events, as in rdma-core: for ever.
void wait_for_acknowledgements(pthread_mutex_t& mutex, pthread_cond_t& cond,
                               const std::uint32_t& acknowledged, unsigned got, const char* what) {
    pthread_mutex_lock(&mutex);
    if (acknowledged != got) {
        report("destroying a %s waits: %u of its events were taken, %u acknowledged", what, got,
               acknowledged);
    }
    while (acknowledged != got) {
        pthread_cond_wait(&cond, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

void acknowledge(pthread_mutex_t& mutex, pthread_cond_t& cond, std::uint32_t& acknowledged,
                 unsigned count) {
    pthread_mutex_lock(&mutex);
    acknowledged += count;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&mutex);
}

bool of_queue_pair(ibv_event_type type) {
    return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
           type == IBV_EVENT_QP_ACCESS_ERR || type == IBV_EVENT_COMM_EST;
}

}  // namespace

namespace softdev::verbs {

void forget_events(Nic& nic, Qp& qp) {
    nic.async.drop([&](const ibv_async_event& event) {
        return of_queue_pair(event.event_type) && event.element.qp == &qp.qp_base;
    });
    wait_for_acknowledgements(qp.qp_base.mutex, qp.qp_base.cond, qp.qp_base.events_completed,
                              qp.events_got, "queue pair");
}

}  // namespace softdev::verbs

SOFTVERBS_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
    Nic& nic = nic_of(context);
    auto made = std::make_unique<Channel>();
    made->context = context;
    made->fd = made->events.fd();
    made->refcnt = 0;
    const deft::MutexLock lock(nic.mutex);
    ++nic.objects;
    return made.release();
}

SOFTVERBS_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* of) {
    auto* const channel = static_cast<Channel*>(of);
    if (!channel->life.check("ibv_destroy_comp_channel", "channel")) {
        return EINVAL;
    }
    Nic& nic = nic_of(channel->context);
    const deft::MutexLock lock(nic.mutex);
    if (channel->users != 0) {
        return refuse(EBUSY, "ibv_destroy_comp_channel: %d completion queues still use it",
                      channel->users);
    }
    --nic.objects;
    channel->life.end();
    delete channel;  // not kept: its descriptor goes too
    return 0;
}

SOFTVERBS_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context,
                                       ibv_comp_channel* channel, int vector) {
    if (entries < 1 || entries > 1 << 20 || vector != 0) {
        return static_cast<ibv_cq*>(refuse_object(
            EINVAL, "ibv_create_cq: %d entries, completion vector %d", entries, vector));
    }
    Nic& nic = nic_of(context);
    auto made = std::make_unique<Cq>();
    made->context = context;
    made->channel = channel;
    made->cq_context = cq_context;
    made->cqe = entries;  // exactly: real devices round up, and differ in that
    pthread_mutex_init(&made->ibv_cq::mutex, nullptr);
    pthread_cond_init(&made->cond, nullptr);
    const deft::MutexLock lock(nic.mutex);
    ++nic.objects;
    if (channel != nullptr) {
        ++static_cast<Channel*>(channel)->users;
        ++channel->refcnt;
    }
    return made.release();
}

SOFTVERBS_EXPORT int ibv_resize_cq(ibv_cq* of, int entries) {
    auto* const cq = static_cast<Cq*>(of);
    return cq->life.check("ibv_resize_cq", "completion queue") && cq->resize(entries) ? 0 : EINVAL;
}

SOFTVERBS_EXPORT int ibv_destroy_cq(ibv_cq* of) {
    auto* const cq = static_cast<Cq*>(of);
    if (!cq->life.check("ibv_destroy_cq", "completion queue")) {
        return EINVAL;
    }
    Nic& nic = nic_of(cq->context);
    {
        const deft::MutexLock lock(nic.mutex);
        if (cq->users != 0) {
            return refuse(EBUSY, "ibv_destroy_cq: %d queues of queue pairs still use it",
                          cq->users);
        }
        --nic.objects;
        cq->life.end();
        if (cq->channel != nullptr) {
            auto* const channel = static_cast<Channel*>(cq->channel);
            channel->events.drop([&](const Cq* one) { return one == cq; });
            --channel->users;
            --channel->refcnt;
        }
        nic.async.drop([&](const ibv_async_event& event) {
            return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == of;
        });
    }
    wait_for_acknowledgements(cq->ibv_cq::mutex, cq->cond, cq->comp_events_completed,
                              cq->events_got, "completion queue");
    bury(std::unique_ptr<Cq>(cq));
    return 0;
}

SOFTVERBS_EXPORT int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
    Cq* found = nullptr;
    if (!static_cast<Channel*>(channel)->events.pop(found)) {
        return -1;
    }
    found->events_got.fetch_add(1);
    *cq = found;
    *cq_context = found->cq_context;
    return 0;
}

SOFTVERBS_EXPORT void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
    acknowledge(cq->mutex, cq->cond, cq->comp_events_completed, count);
}

SOFTVERBS_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
    if (!nic_of(context).async.pop(*event)) {
        return -1;
    }
    if (of_queue_pair(event->event_type)) {
        qp_of(event->element.qp)->events_got.fetch_add(1);
    }
    return 0;
}

SOFTVERBS_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
    if (of_queue_pair(event->event_type)) {
        ibv_qp& qp = *event->element.qp;
        acknowledge(qp.mutex, qp.cond, qp.events_completed, 1);
    }
}

namespace softdev::verbs {

int poll_cq(ibv_cq* of, int most, ibv_wc* out) {
    auto* const cq = static_cast<Cq*>(of);
    if (!cq->life.check("ibv_poll_cq", "completion queue")) {
        return -1;
    }
    const int got = cq->poll(most, out);
    if (got != 0) {
        return got;
    }
    nic_of(cq->context).help();
    return cq->poll(most, out);
}

int request_notification(ibv_cq* of, int solicited_only) {
    auto* const cq = static_cast<Cq*>(of);
    if (!cq->life.check("ibv_req_notify_cq", "completion queue")) {
        return EINVAL;
    }
    cq->request_notification(solicited_only != 0);
    return 0;
}

}  // namespace softdev::verbs
