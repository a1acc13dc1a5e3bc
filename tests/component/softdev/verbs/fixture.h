// SPDX-License-Identifier: Apache-2.0
// Two opened devices on the loopback interface, and a queue pair on each.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "softdev/verbs/softverbs.h"

namespace softdev::verbs::testing {

constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr int kInitMask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kRtrMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                         IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRtsMask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr std::uint8_t kGidIndex = 3;  // RoCE v2, IPv4

struct Shape {
    int cq_entries = 64;
    std::uint32_t send = 8;
    std::uint32_t receive = 8;
    std::uint32_t inline_bytes = 64;
    bool all_signaled = false;
};

// One end: context, domain, queue, memory. Leaves nothing behind.
class Side {
public:
    Side(ibv_device* device, const Shape& shape) : memory(1 << 20) {
        context = ibv_open_device(device);
        pd = ibv_alloc_pd(context);
        cq = ibv_create_cq(context, shape.cq_entries, nullptr, nullptr, 0);
        mr = ibv_reg_mr(pd, memory.data(), memory.size(), kAllAccess);
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = cq;
        init.cap = {shape.send, shape.receive, 4, 4, shape.inline_bytes};
        init.qp_type = IBV_QPT_RC;
        init.sq_sig_all = shape.all_signaled ? 1 : 0;
        qp = ibv_create_qp(pd, &init);
    }
    ~Side() {
        if (qp != nullptr) {
            EXPECT_EQ(ibv_destroy_qp(qp), 0);
        }
        if (mr != nullptr) {
            EXPECT_EQ(ibv_dereg_mr(mr), 0);
        }
        EXPECT_EQ(ibv_destroy_cq(cq), 0);
        EXPECT_EQ(ibv_dealloc_pd(pd), 0);
        EXPECT_EQ(ibv_close_device(context), 0);
    }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    ibv_sge sge(std::size_t offset, std::size_t length) const {
        return {reinterpret_cast<std::uint64_t>(memory.data() + offset),
                static_cast<std::uint32_t>(length), mr->lkey};
    }
    std::uint64_t address(std::size_t offset) const {
        return reinterpret_cast<std::uint64_t>(memory.data() + offset);
    }

    int init(unsigned access = kAllAccess) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qp_access_flags = access;
        return ibv_modify_qp(qp, &attr, kInitMask);
    }
    ibv_qp_attr rtr_attributes(const Side& peer) const {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = peer.qp->qp_num;
        attr.rq_psn = 77;
        attr.max_dest_rd_atomic = 4;
        attr.min_rnr_timer = 12;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.sgid_index = gid_index;
        attr.ah_attr.grh.hop_limit = 255;
        ibv_query_gid(peer.context, 1, peer.gid_index, &attr.ah_attr.grh.dgid);
        return attr;
    }
    int rtr(const Side& peer) {
        ibv_qp_attr attr = rtr_attributes(peer);
        return ibv_modify_qp(qp, &attr, kRtrMask);
    }
    // 4.096 us * 2^timeout * (retries + 1) until a request fails.
    int rts(std::uint8_t timeout = 20, std::uint8_t retries = 7, std::uint8_t not_ready = 7) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTS;
        attr.timeout = timeout;
        attr.retry_cnt = retries;
        attr.rnr_retry = not_ready;
        attr.sq_psn = 77;
        attr.max_rd_atomic = 4;
        return ibv_modify_qp(qp, &attr, kRtsMask);
    }
    int go(ibv_qp_state state) {
        ibv_qp_attr attr{};
        attr.qp_state = state;
        return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
    }
    ibv_qp_state state() {
        ibv_qp_attr attr{};
        ibv_qp_init_attr init{};
        ibv_query_qp(qp, &attr, IBV_QP_STATE, &init);
        return attr.qp_state;
    }

    int post(ibv_send_wr wr, ibv_sge sge) {
        ibv_send_wr* bad = nullptr;
        wr.sg_list = &sge;
        wr.num_sge = sge.length != 0 ? 1 : 0;
        return ibv_post_send(qp, &wr, &bad);
    }
    int send(std::uint64_t id, ibv_sge from, unsigned flags = IBV_SEND_SIGNALED) {
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = flags;
        return post(wr, from);
    }
    int rdma(ibv_wr_opcode opcode, std::uint64_t id, ibv_sge local, const Side& peer,
             std::size_t offset, unsigned flags = IBV_SEND_SIGNALED, std::uint32_t imm = 0) {
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.opcode = opcode;
        wr.send_flags = flags;
        wr.imm_data = imm;
        wr.wr.rdma.remote_addr = peer.address(offset);
        wr.wr.rdma.rkey = peer.mr->rkey;
        return post(wr, local);
    }
    int write(std::uint64_t id, ibv_sge local, const Side& peer, std::size_t offset,
              unsigned flags = IBV_SEND_SIGNALED) {
        return rdma(IBV_WR_RDMA_WRITE, id, local, peer, offset, flags);
    }
    int receive(std::uint64_t id, ibv_sge into) {
        ibv_recv_wr wr{};
        ibv_recv_wr* bad = nullptr;
        wr.wr_id = id;
        wr.sg_list = &into;
        wr.num_sge = into.length != 0 ? 1 : 0;
        return ibv_post_recv(qp, &wr, &bad);
    }

    // The next completion; a test that waits longer than ten seconds has failed.
    ibv_wc next() {
        ibv_wc wc{};
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        int got = 0;
        while ((got = ibv_poll_cq(cq, 1, &wc)) == 0 && std::chrono::steady_clock::now() < end) {
            std::this_thread::yield();
        }
        EXPECT_EQ(got, 1) << "no completion";
        if (got != 1) {
            wc.status = IBV_WC_GENERAL_ERR;
        }
        return wc;
    }
    // The next asynchronous event, acknowledged; its type is -1 if none comes within ten seconds.
    ibv_async_event event() {
        ibv_async_event got{};
        pollfd one{context->async_fd, POLLIN, 0};
        if (poll(&one, 1, 10000) != 1 || ibv_get_async_event(context, &got) != 0) {
            got.event_type = static_cast<ibv_event_type>(-1);
            return got;
        }
        ibv_ack_async_event(&got);
        return got;
    }
    bool nothing_completed() {
        ibv_wc wc{};
        return ibv_poll_cq(cq, 1, &wc) == 0;
    }

    std::vector<char> memory;
    std::uint8_t gid_index = kGidIndex;
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_cq* cq = nullptr;
    ibv_mr* mr = nullptr;
    ibv_qp* qp = nullptr;
};

class Devices {
public:
    Devices() : list(ibv_get_device_list(&count)) {}
    ~Devices() { ibv_free_device_list(list); }
    int count = 0;
    ibv_device** list;
};

// Two ends that may be connected.
class Pair {
public:
    explicit Pair(const Shape& shape = {})
        : left(devices.list[0], shape), right(devices.list[1], shape) {}

    void connect(std::uint8_t timeout = 20, std::uint8_t retries = 7, std::uint8_t not_ready = 7) {
        for (Side* side : {&left, &right}) {
            ASSERT_EQ(side->init(), 0);
        }
        ASSERT_EQ(left.rtr(right), 0);
        ASSERT_EQ(right.rtr(left), 0);
        ASSERT_EQ(left.rts(timeout, retries, not_ready), 0);
        ASSERT_EQ(right.rts(timeout, retries, not_ready), 0);
    }

    Devices devices;
    Side left;
    Side right;
};

// Counts the rules that a test breaks on purpose.
class Violations {
public:
    unsigned long since() const { return softverbs_violations() - before_; }

private:
    unsigned long before_ = softverbs_violations();
};

}  // namespace softdev::verbs::testing
