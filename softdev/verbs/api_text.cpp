// SPDX-License-Identifier: Apache-2.0
// Names, rates, forks, files, and what the stand-in adds for tests.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/unique_fd.h"
#include "softdev/verbs/api.h"
#include "softdev/verbs/faults.h"
#include "softdev/verbs/report.h"

namespace {

struct Rate {
    ibv_rate code;
    int mbps;
};
constexpr std::array kRates = {Rate{IBV_RATE_2_5_GBPS, 2500},    Rate{IBV_RATE_5_GBPS, 5000},
                               Rate{IBV_RATE_10_GBPS, 10000},    Rate{IBV_RATE_14_GBPS, 14062},
                               Rate{IBV_RATE_20_GBPS, 20000},    Rate{IBV_RATE_25_GBPS, 25781},
                               Rate{IBV_RATE_28_GBPS, 28125},    Rate{IBV_RATE_30_GBPS, 30000},
                               Rate{IBV_RATE_40_GBPS, 40000},    Rate{IBV_RATE_50_GBPS, 53125},
                               Rate{IBV_RATE_56_GBPS, 56250},    Rate{IBV_RATE_60_GBPS, 60000},
                               Rate{IBV_RATE_80_GBPS, 80000},    Rate{IBV_RATE_100_GBPS, 103125},
                               Rate{IBV_RATE_112_GBPS, 112500},  Rate{IBV_RATE_120_GBPS, 120000},
                               Rate{IBV_RATE_168_GBPS, 168750},  Rate{IBV_RATE_200_GBPS, 206250},
                               Rate{IBV_RATE_300_GBPS, 309375},  Rate{IBV_RATE_400_GBPS, 425000},
                               Rate{IBV_RATE_600_GBPS, 637500},  Rate{IBV_RATE_800_GBPS, 850000},
                               Rate{IBV_RATE_1200_GBPS, 1275000}};

// The enumerators' own names say enough, and no other text is promised by the interface.
#define NAME(value) \
    case value:     \
        return #value

}  // namespace

SOFTVERBS_EXPORT const char* ibv_wc_status_str(ibv_wc_status status) {
    switch (status) {
        NAME(IBV_WC_SUCCESS);
        NAME(IBV_WC_LOC_LEN_ERR);
        NAME(IBV_WC_LOC_QP_OP_ERR);
        NAME(IBV_WC_LOC_EEC_OP_ERR);
        NAME(IBV_WC_LOC_PROT_ERR);
        NAME(IBV_WC_WR_FLUSH_ERR);
        NAME(IBV_WC_MW_BIND_ERR);
        NAME(IBV_WC_BAD_RESP_ERR);
        NAME(IBV_WC_LOC_ACCESS_ERR);
        NAME(IBV_WC_REM_INV_REQ_ERR);
        NAME(IBV_WC_REM_ACCESS_ERR);
        NAME(IBV_WC_REM_OP_ERR);
        NAME(IBV_WC_RETRY_EXC_ERR);
        NAME(IBV_WC_RNR_RETRY_EXC_ERR);
        NAME(IBV_WC_LOC_RDD_VIOL_ERR);
        NAME(IBV_WC_REM_INV_RD_REQ_ERR);
        NAME(IBV_WC_REM_ABORT_ERR);
        NAME(IBV_WC_INV_EECN_ERR);
        NAME(IBV_WC_INV_EEC_STATE_ERR);
        NAME(IBV_WC_FATAL_ERR);
        NAME(IBV_WC_RESP_TIMEOUT_ERR);
        NAME(IBV_WC_GENERAL_ERR);
        NAME(IBV_WC_TM_ERR);
        NAME(IBV_WC_TM_RNDV_INCOMPLETE);
    }
    return "unknown";
}

SOFTVERBS_EXPORT const char* ibv_event_type_str(ibv_event_type event) {
    switch (event) {
        NAME(IBV_EVENT_CQ_ERR);
        NAME(IBV_EVENT_QP_FATAL);
        NAME(IBV_EVENT_QP_REQ_ERR);
        NAME(IBV_EVENT_QP_ACCESS_ERR);
        NAME(IBV_EVENT_COMM_EST);
        NAME(IBV_EVENT_SQ_DRAINED);
        NAME(IBV_EVENT_PATH_MIG);
        NAME(IBV_EVENT_PATH_MIG_ERR);
        NAME(IBV_EVENT_DEVICE_FATAL);
        NAME(IBV_EVENT_PORT_ACTIVE);
        NAME(IBV_EVENT_PORT_ERR);
        NAME(IBV_EVENT_LID_CHANGE);
        NAME(IBV_EVENT_PKEY_CHANGE);
        NAME(IBV_EVENT_SM_CHANGE);
        NAME(IBV_EVENT_SRQ_ERR);
        NAME(IBV_EVENT_SRQ_LIMIT_REACHED);
        NAME(IBV_EVENT_QP_LAST_WQE_REACHED);
        NAME(IBV_EVENT_CLIENT_REREGISTER);
        NAME(IBV_EVENT_GID_CHANGE);
        NAME(IBV_EVENT_WQ_FATAL);
    }
    return "unknown";
}

SOFTVERBS_EXPORT const char* ibv_port_state_str(ibv_port_state state) {
    switch (state) {
        NAME(IBV_PORT_NOP);
        NAME(IBV_PORT_DOWN);
        NAME(IBV_PORT_INIT);
        NAME(IBV_PORT_ARMED);
        NAME(IBV_PORT_ACTIVE);
        NAME(IBV_PORT_ACTIVE_DEFER);
    }
    return "unknown";
}

SOFTVERBS_EXPORT const char* ibv_node_type_str(ibv_node_type type) {
    switch (type) {
        NAME(IBV_NODE_CA);
        NAME(IBV_NODE_SWITCH);
        NAME(IBV_NODE_ROUTER);
        NAME(IBV_NODE_RNIC);
        NAME(IBV_NODE_USNIC);
        NAME(IBV_NODE_USNIC_UDP);
        NAME(IBV_NODE_UNSPECIFIED);
        NAME(IBV_NODE_UNKNOWN);
    }
    return "unknown";
}

SOFTVERBS_EXPORT int ibv_rate_to_mbps(ibv_rate rate) {
    for (const Rate& one : kRates) {
        if (one.code == rate) {
            return one.mbps;
        }
    }
    return -1;
}

SOFTVERBS_EXPORT ibv_rate mbps_to_ibv_rate(int mbps) {
    for (const Rate& one : kRates) {
        if (one.mbps == mbps) {
            return one.code;
        }
    }
    return IBV_RATE_MAX;
}

SOFTVERBS_EXPORT int ibv_rate_to_mult(ibv_rate rate) {
    const int mbps = ibv_rate_to_mbps(rate);
    return mbps < 0 ? -1 : mbps / 2500;
}

SOFTVERBS_EXPORT ibv_rate mult_to_ibv_rate(int mult) {
    return mbps_to_ibv_rate(mult * 2500);
}

// No page is pinned for good here: a child that touches it has a copy of its own.
SOFTVERBS_EXPORT int ibv_fork_init() {
    return 0;
}

SOFTVERBS_EXPORT ibv_fork_status ibv_is_fork_initialized() {
    return IBV_FORK_UNNEEDED;
}

SOFTVERBS_EXPORT const char* ibv_get_sysfs_path() {
    return "/sys";
}

// The first line of a file, without its end. Its length, or -1.
SOFTVERBS_EXPORT int ibv_read_sysfs_file(const char* folder, const char* file, char* buffer,
                                         std::size_t size) {
    const std::string path = std::string(folder) + "/" + file;
    const deft::UniqueFd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened || size == 0) {
        return -1;
    }
    ssize_t got = ::read(opened.get(), buffer, size);
    if (got <= 0) {
        return -1;
    }
    if (buffer[got - 1] == '\n') {
        --got;
    }
    if (static_cast<std::size_t>(got) < size) {
        buffer[got] = '\0';
    }
    return static_cast<int>(got);
}

SOFTVERBS_EXPORT int softverbs_set_faults(const char* text) {
    std::string error;
    if (!softdev::verbs::set_faults(text, error)) {
        return softdev::verbs::refuse(EINVAL, "%s", error.c_str());
    }
    return 0;
}

SOFTVERBS_EXPORT long softverbs_injected(const char* fault) {
    return softdev::verbs::injected(fault);
}

SOFTVERBS_EXPORT unsigned long softverbs_violations() {
    return softdev::verbs::violations();
}
