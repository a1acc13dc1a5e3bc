// SPDX-License-Identifier: Apache-2.0
// Our declarations of libibverbs' ABI, held to rdma-core's header.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include "deft/abi/verbs.h"

namespace {

#define SAME_PLACE(ours, theirs, member)                                \
    static_assert(offsetof(ours, member) == offsetof(theirs, member) && \
                      sizeof(reinterpret_cast<ours*>(0)->member) ==     \
                          sizeof(reinterpret_cast<theirs*>(0)->member), \
                  #theirs "::" #member)
#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define SAME_VALUE(name) static_assert(int{DEFT_VERBS_##name} == int{IBV_##name}, #name)

SAME_SIZE(deft_verbs_context_ops_t, ibv_context_ops);
SAME_PLACE(deft_verbs_context_ops_t, ibv_context_ops, poll_cq);
SAME_PLACE(deft_verbs_context_ops_t, ibv_context_ops, post_send);
SAME_PLACE(deft_verbs_context_ops_t, ibv_context_ops, post_recv);
SAME_PLACE(deft_verbs_context_t, ibv_context, ops);
SAME_PLACE(deft_verbs_context_t, ibv_context, async_fd);
SAME_PLACE(deft_verbs_context_t, ibv_context, num_comp_vectors);
SAME_SIZE(deft_verbs_mr_t, ibv_mr);
SAME_PLACE(deft_verbs_mr_t, ibv_mr, length);
SAME_PLACE(deft_verbs_mr_t, ibv_mr, lkey);
SAME_PLACE(deft_verbs_mr_t, ibv_mr, rkey);
SAME_PLACE(deft_verbs_qp, ibv_qp, context);
SAME_PLACE(deft_verbs_qp, ibv_qp, qp_num);
SAME_SIZE(deft_verbs_gid_t, ibv_gid);
SAME_SIZE(deft_verbs_ece_t, ibv_ece);
SAME_SIZE(deft_verbs_port_attr_t, ibv_port_attr);
SAME_PLACE(deft_verbs_port_attr_t, ibv_port_attr, state);
SAME_PLACE(deft_verbs_port_attr_t, ibv_port_attr, active_mtu);
SAME_PLACE(deft_verbs_port_attr_t, ibv_port_attr, gid_tbl_len);
SAME_PLACE(deft_verbs_port_attr_t, ibv_port_attr, max_msg_sz);
SAME_PLACE(deft_verbs_port_attr_t, ibv_port_attr, lid);
SAME_PLACE(deft_verbs_port_attr_t, ibv_port_attr, link_layer);
SAME_PLACE(deft_verbs_port_attr_t, ibv_port_attr, flags);
SAME_SIZE(deft_verbs_qp_cap_t, ibv_qp_cap);
SAME_SIZE(deft_verbs_qp_init_attr_t, ibv_qp_init_attr);
SAME_PLACE(deft_verbs_qp_init_attr_t, ibv_qp_init_attr, cap);
SAME_PLACE(deft_verbs_qp_init_attr_t, ibv_qp_init_attr, qp_type);
SAME_PLACE(deft_verbs_qp_init_attr_t, ibv_qp_init_attr, sq_sig_all);
SAME_SIZE(deft_verbs_global_route_t, ibv_global_route);
SAME_PLACE(deft_verbs_global_route_t, ibv_global_route, sgid_index);
SAME_PLACE(deft_verbs_global_route_t, ibv_global_route, hop_limit);
SAME_PLACE(deft_verbs_global_route_t, ibv_global_route, traffic_class);
SAME_SIZE(deft_verbs_ah_attr_t, ibv_ah_attr);
SAME_PLACE(deft_verbs_ah_attr_t, ibv_ah_attr, dlid);
SAME_PLACE(deft_verbs_ah_attr_t, ibv_ah_attr, sl);
SAME_PLACE(deft_verbs_ah_attr_t, ibv_ah_attr, is_global);
SAME_PLACE(deft_verbs_ah_attr_t, ibv_ah_attr, port_num);
SAME_SIZE(deft_verbs_qp_attr_t, ibv_qp_attr);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, qp_state);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, path_mtu);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, rq_psn);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, sq_psn);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, dest_qp_num);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, qp_access_flags);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, ah_attr);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, pkey_index);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, max_rd_atomic);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, max_dest_rd_atomic);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, min_rnr_timer);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, port_num);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, timeout);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, retry_cnt);
SAME_PLACE(deft_verbs_qp_attr_t, ibv_qp_attr, rnr_retry);
SAME_SIZE(deft_verbs_sge_t, ibv_sge);
SAME_PLACE(deft_verbs_sge_t, ibv_sge, lkey);
SAME_SIZE(deft_verbs_send_wr, ibv_send_wr);
SAME_PLACE(deft_verbs_send_wr, ibv_send_wr, sg_list);
SAME_PLACE(deft_verbs_send_wr, ibv_send_wr, num_sge);
SAME_PLACE(deft_verbs_send_wr, ibv_send_wr, opcode);
SAME_PLACE(deft_verbs_send_wr, ibv_send_wr, send_flags);
SAME_PLACE(deft_verbs_send_wr, ibv_send_wr, imm_data);
static_assert(offsetof(deft_verbs_send_wr, remote_addr) == offsetof(ibv_send_wr, wr));
static_assert(offsetof(deft_verbs_send_wr, rkey) == offsetof(ibv_send_wr, wr.rdma.rkey));
SAME_SIZE(deft_verbs_recv_wr, ibv_recv_wr);
SAME_PLACE(deft_verbs_recv_wr, ibv_recv_wr, sg_list);
SAME_PLACE(deft_verbs_recv_wr, ibv_recv_wr, num_sge);
SAME_SIZE(deft_verbs_wc, ibv_wc);
SAME_PLACE(deft_verbs_wc, ibv_wc, status);
SAME_PLACE(deft_verbs_wc, ibv_wc, opcode);
SAME_PLACE(deft_verbs_wc, ibv_wc, vendor_err);
SAME_PLACE(deft_verbs_wc, ibv_wc, byte_len);
SAME_PLACE(deft_verbs_wc, ibv_wc, qp_num);
SAME_SIZE(deft_verbs_async_event_t, ibv_async_event);
SAME_PLACE(deft_verbs_async_event_t, ibv_async_event, event_type);

SAME_VALUE(MTU_256);
SAME_VALUE(MTU_4096);
SAME_VALUE(PORT_ACTIVE);
SAME_VALUE(LINK_LAYER_INFINIBAND);
SAME_VALUE(LINK_LAYER_ETHERNET);
static_assert(int{DEFT_VERBS_PORT_GRH_REQUIRED} == int{IBV_QPF_GRH_REQUIRED});
SAME_VALUE(QPT_RC);
SAME_VALUE(QPS_RESET);
SAME_VALUE(QPS_INIT);
SAME_VALUE(QPS_RTR);
SAME_VALUE(QPS_RTS);
SAME_VALUE(QPS_ERR);
SAME_VALUE(QP_STATE);
SAME_VALUE(QP_ACCESS_FLAGS);
SAME_VALUE(QP_PKEY_INDEX);
SAME_VALUE(QP_PORT);
SAME_VALUE(QP_AV);
SAME_VALUE(QP_PATH_MTU);
SAME_VALUE(QP_TIMEOUT);
SAME_VALUE(QP_RETRY_CNT);
SAME_VALUE(QP_RNR_RETRY);
SAME_VALUE(QP_RQ_PSN);
SAME_VALUE(QP_MAX_QP_RD_ATOMIC);
SAME_VALUE(QP_MIN_RNR_TIMER);
SAME_VALUE(QP_SQ_PSN);
SAME_VALUE(QP_MAX_DEST_RD_ATOMIC);
SAME_VALUE(QP_DEST_QPN);
SAME_VALUE(ACCESS_LOCAL_WRITE);
SAME_VALUE(ACCESS_REMOTE_WRITE);
SAME_VALUE(ACCESS_REMOTE_READ);
SAME_VALUE(ACCESS_RELAXED_ORDERING);
SAME_VALUE(WR_RDMA_WRITE);
SAME_VALUE(WR_SEND);
SAME_VALUE(SEND_SIGNALED);
SAME_VALUE(WC_SUCCESS);
SAME_VALUE(WC_LOC_LEN_ERR);
SAME_VALUE(WC_LOC_QP_OP_ERR);
SAME_VALUE(WC_LOC_PROT_ERR);
SAME_VALUE(WC_WR_FLUSH_ERR);
SAME_VALUE(WC_REM_INV_REQ_ERR);
SAME_VALUE(WC_REM_ACCESS_ERR);
SAME_VALUE(WC_REM_OP_ERR);
SAME_VALUE(WC_RETRY_EXC_ERR);
SAME_VALUE(WC_RNR_RETRY_EXC_ERR);
SAME_VALUE(EVENT_CQ_ERR);
SAME_VALUE(EVENT_QP_FATAL);
SAME_VALUE(EVENT_QP_REQ_ERR);
SAME_VALUE(EVENT_QP_ACCESS_ERR);
SAME_VALUE(EVENT_COMM_EST);
SAME_VALUE(EVENT_DEVICE_FATAL);
SAME_VALUE(EVENT_PORT_ACTIVE);
SAME_VALUE(EVENT_PORT_ERR);
SAME_VALUE(EVENT_LID_CHANGE);
SAME_VALUE(EVENT_GID_CHANGE);

TEST(VerbsAbi, IsThatOfRdmaCore) {}  // the compiler has said so

}  // namespace
