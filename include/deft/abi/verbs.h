/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of libibverbs' public ABI as the plugin needs, written by us from its documented layout:
 * reliable connections, their completions, memory regions, events. Binary-compatible with
 * libibverbs.so.1 of rdma-core 17 and later on 64-bit Linux; tests/unit/plugin/verbs asserts it
 * against the vendor's header.
 *
 * Why our own: the library must build without rdma-core's headers, and opens libibverbs only where
 * it drives RDMA ports.
 *
 * Opaque: devices, protection domains, completion queues. Structs begin as libibverbs' do and may
 * be longer there: they are only ever made by libibverbs, where not said otherwise. Plain C11 and
 * C++; no includes beyond <stddef.h> and <stdint.h>.
 */
#ifndef DEFT_ABI_VERBS_H
#define DEFT_ABI_VERBS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct deft_verbs_device deft_verbs_device_t; /* ibv_device */
typedef struct deft_verbs_pd deft_verbs_pd_t;         /* ibv_pd */
typedef struct deft_verbs_cq deft_verbs_cq_t;         /* ibv_cq */
typedef struct deft_verbs_qp deft_verbs_qp_t;
typedef struct deft_verbs_wc deft_verbs_wc_t;
typedef struct deft_verbs_send_wr deft_verbs_send_wr_t;
typedef struct deft_verbs_recv_wr deft_verbs_recv_wr_t;

/* ibv_context_ops: what is not exported, and called through the context. */
typedef struct {
    void* before[11];
    int (*poll_cq)(deft_verbs_cq_t* cq, int entries, deft_verbs_wc_t* wc); /* < 0: failed */
    void* between[13];
    /* 0 or errno; *bad is the first request that was not taken. */
    int (*post_send)(deft_verbs_qp_t* qp, deft_verbs_send_wr_t* wr, deft_verbs_send_wr_t** bad);
    int (*post_recv)(deft_verbs_qp_t* qp, deft_verbs_recv_wr_t* wr, deft_verbs_recv_wr_t** bad);
    void* behind[5];
} deft_verbs_context_ops_t;

/* ibv_context. Made by libibverbs. */
typedef struct {
    deft_verbs_device_t* device;
    deft_verbs_context_ops_t ops;
    int cmd_fd;
    int async_fd;
    int num_comp_vectors;
} deft_verbs_context_t;

/* ibv_mr. Made by libibverbs. */
typedef struct {
    deft_verbs_context_t* context;
    deft_verbs_pd_t* pd;
    void* addr;
    size_t length;
    uint32_t handle;
    uint32_t lkey;
    uint32_t rkey;
} deft_verbs_mr_t;

/* ibv_qp. Made by libibverbs. */
struct deft_verbs_qp {
    deft_verbs_context_t* context;
    void* qp_context;
    deft_verbs_pd_t* pd;
    deft_verbs_cq_t* send_cq;
    deft_verbs_cq_t* recv_cq;
    void* srq;
    uint32_t handle;
    uint32_t qp_num;
};

/* ibv_gid, in network byte order. */
typedef union {
    uint8_t raw[16];
    uint64_t align;
} deft_verbs_gid_t;

/* ibv_port_attr. `port_cap_flags2` is filled in by newer releases alone. */
typedef struct {
    int state;
    int max_mtu;
    int active_mtu; /* DEFT_VERBS_MTU_* */
    int gid_tbl_len;
    uint32_t port_cap_flags;
    uint32_t max_msg_sz;
    uint32_t bad_pkey_cntr;
    uint32_t qkey_viol_cntr;
    uint16_t pkey_tbl_len;
    uint16_t lid;
    uint16_t sm_lid;
    uint8_t lmc;
    uint8_t max_vl_num;
    uint8_t sm_sl;
    uint8_t subnet_timeout;
    uint8_t init_type_reply;
    uint8_t active_width;
    uint8_t active_speed;
    uint8_t phys_state;
    uint8_t link_layer;
    uint8_t flags;
    uint16_t port_cap_flags2;
} deft_verbs_port_attr_t;

/* ibv_qp_cap */
typedef struct {
    uint32_t max_send_wr;
    uint32_t max_recv_wr;
    uint32_t max_send_sge;
    uint32_t max_recv_sge;
    uint32_t max_inline_data;
} deft_verbs_qp_cap_t;

/* ibv_qp_init_attr */
typedef struct {
    void* qp_context;
    deft_verbs_cq_t* send_cq;
    deft_verbs_cq_t* recv_cq;
    void* srq;
    deft_verbs_qp_cap_t cap;
    int qp_type;
    int sq_sig_all;
} deft_verbs_qp_init_attr_t;

/* ibv_global_route, ibv_ah_attr */
typedef struct {
    deft_verbs_gid_t dgid;
    uint32_t flow_label;
    uint8_t sgid_index;
    uint8_t hop_limit;
    uint8_t traffic_class;
} deft_verbs_global_route_t;
typedef struct {
    deft_verbs_global_route_t grh;
    uint16_t dlid;
    uint8_t sl;
    uint8_t src_path_bits;
    uint8_t static_rate;
    uint8_t is_global;
    uint8_t port_num;
} deft_verbs_ah_attr_t;

/* ibv_qp_attr */
typedef struct {
    int qp_state;
    int cur_qp_state;
    int path_mtu;
    int path_mig_state;
    uint32_t qkey;
    uint32_t rq_psn;
    uint32_t sq_psn;
    uint32_t dest_qp_num;
    unsigned int qp_access_flags;
    deft_verbs_qp_cap_t cap;
    deft_verbs_ah_attr_t ah_attr;
    deft_verbs_ah_attr_t alt_ah_attr;
    uint16_t pkey_index;
    uint16_t alt_pkey_index;
    uint8_t en_sqd_async_notify;
    uint8_t sq_draining;
    uint8_t max_rd_atomic;
    uint8_t max_dest_rd_atomic;
    uint8_t min_rnr_timer;
    uint8_t port_num;
    uint8_t timeout;
    uint8_t retry_cnt;
    uint8_t rnr_retry;
    uint8_t alt_port_num;
    uint8_t alt_timeout;
    uint32_t rate_limit;
} deft_verbs_qp_attr_t;

/* ibv_sge */
typedef struct {
    uint64_t addr;
    uint32_t length;
    uint32_t lkey;
} deft_verbs_sge_t;

/* ibv_send_wr */
struct deft_verbs_send_wr {
    uint64_t wr_id;
    deft_verbs_send_wr_t* next;
    deft_verbs_sge_t* sg_list;
    int num_sge;
    int opcode;
    unsigned int send_flags;
    uint32_t imm_data; /* network byte order */
    uint64_t remote_addr;
    uint32_t rkey;
    uint32_t reserved[19]; /* of other kinds of request */
};

/* ibv_recv_wr */
struct deft_verbs_recv_wr {
    uint64_t wr_id;
    deft_verbs_recv_wr_t* next;
    deft_verbs_sge_t* sg_list;
    int num_sge;
};

/* ibv_wc. After an error wr_id, status, vendor_err and qp_num alone mean anything. */
struct deft_verbs_wc {
    uint64_t wr_id;
    int status;
    int opcode;
    uint32_t vendor_err;
    uint32_t byte_len;
    uint32_t imm_data;
    uint32_t qp_num;
    uint32_t src_qp;
    unsigned int wc_flags;
    uint16_t pkey_index;
    uint16_t slid;
    uint8_t sl;
    uint8_t dlid_path_bits;
};

/* ibv_async_event */
typedef struct {
    union {
        deft_verbs_cq_t* cq;
        deft_verbs_qp_t* qp;
        int port_num;
    } element;
    int event_type;
} deft_verbs_async_event_t;

/* ibv_ece: a vendor's extensions to a connection */
typedef struct {
    uint32_t vendor_id;
    uint32_t options;
    uint32_t comp_mask;
} deft_verbs_ece_t;

/* ibv_mtu: 256 << (value - 1) bytes */
enum { DEFT_VERBS_MTU_256 = 1, DEFT_VERBS_MTU_4096 = 5 };
/* ibv_port_state */
enum { DEFT_VERBS_PORT_ACTIVE = 4 };
/* ibv_port_attr: link_layer, and a bit of flags */
enum {
    DEFT_VERBS_LINK_LAYER_INFINIBAND = 1,
    DEFT_VERBS_LINK_LAYER_ETHERNET = 2,
    DEFT_VERBS_PORT_GRH_REQUIRED = 1
};
/* ibv_qp_type, ibv_qp_state */
enum { DEFT_VERBS_QPT_RC = 2 };
enum {
    DEFT_VERBS_QPS_RESET = 0,
    DEFT_VERBS_QPS_INIT = 1,
    DEFT_VERBS_QPS_RTR = 2,
    DEFT_VERBS_QPS_RTS = 3,
    DEFT_VERBS_QPS_ERR = 6
};
/* ibv_qp_attr_mask */
enum {
    DEFT_VERBS_QP_STATE = 1 << 0,
    DEFT_VERBS_QP_ACCESS_FLAGS = 1 << 3,
    DEFT_VERBS_QP_PKEY_INDEX = 1 << 4,
    DEFT_VERBS_QP_PORT = 1 << 5,
    DEFT_VERBS_QP_AV = 1 << 7,
    DEFT_VERBS_QP_PATH_MTU = 1 << 8,
    DEFT_VERBS_QP_TIMEOUT = 1 << 9,
    DEFT_VERBS_QP_RETRY_CNT = 1 << 10,
    DEFT_VERBS_QP_RNR_RETRY = 1 << 11,
    DEFT_VERBS_QP_RQ_PSN = 1 << 12,
    DEFT_VERBS_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    DEFT_VERBS_QP_MIN_RNR_TIMER = 1 << 15,
    DEFT_VERBS_QP_SQ_PSN = 1 << 16,
    DEFT_VERBS_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    DEFT_VERBS_QP_DEST_QPN = 1 << 20
};
/* ibv_access_flags */
enum {
    DEFT_VERBS_ACCESS_LOCAL_WRITE = 1 << 0,
    DEFT_VERBS_ACCESS_REMOTE_WRITE = 1 << 1,
    DEFT_VERBS_ACCESS_REMOTE_READ = 1 << 2,
    DEFT_VERBS_ACCESS_RELAXED_ORDERING = 1 << 20
};
/* ibv_wr_opcode, ibv_send_flags */
enum { DEFT_VERBS_WR_RDMA_WRITE = 0, DEFT_VERBS_WR_SEND = 2, DEFT_VERBS_WR_RDMA_READ = 4 };
enum { DEFT_VERBS_SEND_SIGNALED = 1 << 1 };
/* ibv_wc_status */
enum {
    DEFT_VERBS_WC_SUCCESS = 0,
    DEFT_VERBS_WC_LOC_LEN_ERR = 1,
    DEFT_VERBS_WC_LOC_QP_OP_ERR = 2,
    DEFT_VERBS_WC_LOC_PROT_ERR = 4,
    DEFT_VERBS_WC_WR_FLUSH_ERR = 5,
    DEFT_VERBS_WC_REM_INV_REQ_ERR = 9,
    DEFT_VERBS_WC_REM_ACCESS_ERR = 10,
    DEFT_VERBS_WC_REM_OP_ERR = 11,
    DEFT_VERBS_WC_RETRY_EXC_ERR = 12,
    DEFT_VERBS_WC_RNR_RETRY_EXC_ERR = 13
};
/* ibv_event_type */
enum {
    DEFT_VERBS_EVENT_CQ_ERR = 0,
    DEFT_VERBS_EVENT_QP_FATAL = 1,
    DEFT_VERBS_EVENT_QP_REQ_ERR = 2,
    DEFT_VERBS_EVENT_QP_ACCESS_ERR = 3,
    DEFT_VERBS_EVENT_COMM_EST = 4,
    DEFT_VERBS_EVENT_DEVICE_FATAL = 8,
    DEFT_VERBS_EVENT_PORT_ACTIVE = 9,
    DEFT_VERBS_EVENT_PORT_ERR = 10,
    DEFT_VERBS_EVENT_LID_CHANGE = 11,
    DEFT_VERBS_EVENT_GID_CHANGE = 18
};

/* The 64-bit Linux data model alone. */
#ifdef __cplusplus
#define DEFT_VERBS_ASSERT(condition) static_assert(condition, #condition)
#else
#define DEFT_VERBS_ASSERT(condition) _Static_assert(condition, #condition)
#endif
DEFT_VERBS_ASSERT(offsetof(deft_verbs_context_t, async_fd) == 268);
DEFT_VERBS_ASSERT(offsetof(deft_verbs_mr_t, lkey) == 36);
DEFT_VERBS_ASSERT(offsetof(struct deft_verbs_qp, qp_num) == 52);
DEFT_VERBS_ASSERT(sizeof(deft_verbs_port_attr_t) == 52);
DEFT_VERBS_ASSERT(sizeof(deft_verbs_qp_init_attr_t) == 64);
DEFT_VERBS_ASSERT(sizeof(deft_verbs_ah_attr_t) == 32);
DEFT_VERBS_ASSERT(sizeof(deft_verbs_qp_attr_t) == 144);
DEFT_VERBS_ASSERT(sizeof(struct deft_verbs_send_wr) == 128);
DEFT_VERBS_ASSERT(sizeof(struct deft_verbs_recv_wr) == 32);
DEFT_VERBS_ASSERT(sizeof(struct deft_verbs_wc) == 48);
DEFT_VERBS_ASSERT(sizeof(deft_verbs_async_event_t) == 16);
#undef DEFT_VERBS_ASSERT

#ifdef __cplusplus
}
#endif

#endif
