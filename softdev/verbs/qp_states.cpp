// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/qp_states.h"

#include <array>
#include <cstdint>

namespace softdev::verbs {
namespace {

constexpr int kAlways = IBV_QP_STATE | IBV_QP_CUR_STATE;

constexpr std::array kTransitions = {
    Transition{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
               0},
    Transition{IBV_QPS_INIT, IBV_QPS_INIT, 0,
               IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    Transition{IBV_QPS_INIT, IBV_QPS_RTR,
               IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
               IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    Transition{IBV_QPS_RTR, IBV_QPS_RTS,
               IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                   IBV_QP_MAX_QP_RD_ATOMIC,
               IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    Transition{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

struct BitName {
    int bit;
    const char* name;
};
constexpr std::array kNames = {
    BitName{IBV_QP_STATE, "IBV_QP_STATE"},
    BitName{IBV_QP_CUR_STATE, "IBV_QP_CUR_STATE"},
    BitName{IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"},
    BitName{IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX"},
    BitName{IBV_QP_PORT, "IBV_QP_PORT"},
    BitName{IBV_QP_QKEY, "IBV_QP_QKEY"},
    BitName{IBV_QP_AV, "IBV_QP_AV"},
    BitName{IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU"},
    BitName{IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT"},
    BitName{IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT"},
    BitName{IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY"},
    BitName{IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN"},
    BitName{IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"},
    BitName{IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"},
    BitName{IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN"},
    BitName{IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"},
    BitName{IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN"},
};

constexpr unsigned kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr int kMostReads = 16;

}  // namespace

std::optional<Transition> transition(ibv_qp_state from, ibv_qp_state to) {
    // From everywhere back to the start, or into the error state.
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
        return Transition{from, to, 0, kAlways};
    }
    for (const Transition& one : kTransitions) {
        if (one.from == from && one.to == to) {
            return Transition{from, to, one.required, one.optional | kAlways};
        }
    }
    return std::nullopt;
}

const char* first_name(int mask) {
    for (const BitName& one : kNames) {
        if ((mask & one.bit) != 0) {
            return one.name;
        }
    }
    return "an unknown attribute";
}

const char* bad_value(const ibv_qp_attr& attr, int mask) {
    struct Rule {
        int bit;
        bool good;
    };
    constexpr std::uint32_t most = (1U << 24) - 1;
    const std::array rules = {
        Rule{IBV_QP_ACCESS_FLAGS, (attr.qp_access_flags & ~kKnownAccess) == 0},
        Rule{IBV_QP_PKEY_INDEX, attr.pkey_index == 0},
        Rule{IBV_QP_PATH_MTU, attr.path_mtu >= IBV_MTU_256 && attr.path_mtu <= IBV_MTU_4096},
        Rule{IBV_QP_TIMEOUT, attr.timeout <= 31},
        Rule{IBV_QP_RETRY_CNT, attr.retry_cnt <= 7},
        Rule{IBV_QP_RNR_RETRY, attr.rnr_retry <= 7},
        Rule{IBV_QP_RQ_PSN, attr.rq_psn <= most},
        Rule{IBV_QP_SQ_PSN, attr.sq_psn <= most},
        Rule{IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= kMostReads},
        Rule{IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= kMostReads},
        Rule{IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer <= 31},
        Rule{IBV_QP_DEST_QPN, attr.dest_qp_num <= most && attr.dest_qp_num > 1},
    };
    for (const Rule& rule : rules) {
        if ((mask & rule.bit) != 0 && !rule.good) {
            return first_name(rule.bit);
        }
    }
    return nullptr;
}

}  // namespace softdev::verbs
