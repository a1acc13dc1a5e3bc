// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/nccl_names.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/nearest.h"

namespace deft::tools::doctor {
namespace {

// All that NCCL is known to read, or PyTorch reads under NCCL's prefix, as far as users set it.
constexpr std::string_view kNcclNames[] = {"NCCL_ALGO",
                                           "NCCL_ALLOC_P2P_NET_LL_BUFFERS",
                                           "NCCL_ALLREDUCE_ALGO",
                                           "NCCL_ASYNC_ERROR_HANDLING",
                                           "NCCL_BLOCKING_WAIT",
                                           "NCCL_BUFFSIZE",
                                           "NCCL_CGA_CLUSTER_SIZE",
                                           "NCCL_CHECKS_DISABLE",
                                           "NCCL_CHECK_POINTERS",
                                           "NCCL_COLLNET_ENABLE",
                                           "NCCL_COLLNET_NODE_THRESHOLD",
                                           "NCCL_COMM_BLOCKING",
                                           "NCCL_COMM_ID",
                                           "NCCL_COMM_SHRINK_SHARE_RESOURCES",
                                           "NCCL_COMM_SPLIT_SHARE_RESOURCES",
                                           "NCCL_CONF_FILE",
                                           "NCCL_CONNECT_ROUND_ROBIN",
                                           "NCCL_CREATE_THREAD_CONTEXT",
                                           "NCCL_CROSS_NIC",
                                           "NCCL_CTA_POLICY",
                                           "NCCL_CUMEM_ENABLE",
                                           "NCCL_CUMEM_HOST_ENABLE",
                                           "NCCL_DEBUG",
                                           "NCCL_DEBUG_FILE",
                                           "NCCL_DEBUG_SUBSYS",
                                           "NCCL_DEBUG_TIMESTAMP_FORMAT",
                                           "NCCL_DEBUG_TIMESTAMP_LEVELS",
                                           "NCCL_DESYNC_DEBUG",
                                           "NCCL_DMABUF_ENABLE",
                                           "NCCL_ENV_PLUGIN",
                                           "NCCL_FASTRAK_CTRL_DEV",
                                           "NCCL_FASTRAK_IFNAME",
                                           "NCCL_GDRCOPY_ENABLE",
                                           "NCCL_GDRCOPY_FIFO_ENABLE",
                                           "NCCL_GDRCOPY_FLUSH_ENABLE",
                                           "NCCL_GDRCOPY_SYNC_ENABLE",
                                           "NCCL_GDR_FLUSH_DISABLE",
                                           "NCCL_GRAPH_DUMP_FILE",
                                           "NCCL_GRAPH_DUMP_FILE_RANK",
                                           "NCCL_GRAPH_FILE",
                                           "NCCL_GRAPH_MIXING_SUPPORT",
                                           "NCCL_GRAPH_REGISTER",
                                           "NCCL_HOSTID",
                                           "NCCL_IBVERBS_LIB",
                                           "NCCL_IB_ADAPTIVE_ROUTING",
                                           "NCCL_IB_ADDR_FAMILY",
                                           "NCCL_IB_ADDR_RANGE",
                                           "NCCL_IB_AR_THRESHOLD",
                                           "NCCL_IB_CUDA_SUPPORT",
                                           "NCCL_IB_DATA_DIRECT",
                                           "NCCL_IB_DISABLE",
                                           "NCCL_IB_ECE_ENABLE",
                                           "NCCL_IB_FIFO_TC",
                                           "NCCL_IB_GDR_LEVEL",
                                           "NCCL_IB_GID_INDEX",
                                           "NCCL_IB_HCA",
                                           "NCCL_IB_MERGE_NICS",
                                           "NCCL_IB_MERGE_VFS",
                                           "NCCL_IB_MQP_RETRY_ALL",
                                           "NCCL_IB_MQP_RETRY_SLEEP_MSEC",
                                           "NCCL_IB_OOO_RQ",
                                           "NCCL_IB_PCI_RELAXED_ORDERING",
                                           "NCCL_IB_PKEY",
                                           "NCCL_IB_PREFER_IPOIB",
                                           "NCCL_IB_QPS_PER_CONNECTION",
                                           "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME",
                                           "NCCL_IB_RETRY_CNT",
                                           "NCCL_IB_RETURN_ASYNC_EVENTS",
                                           "NCCL_IB_ROCE_VERSION_NUM",
                                           "NCCL_IB_SL",
                                           "NCCL_IB_SPLIT_DATA_ON_QPS",
                                           "NCCL_IB_TC",
                                           "NCCL_IB_TIMEOUT",
                                           "NCCL_IB_USE_INLINE",
                                           "NCCL_IB_WARN_RAIL_LOCAL",
                                           "NCCL_IGNORE_CPU_AFFINITY",
                                           "NCCL_IGNORE_DISABLED_P2P",
                                           "NCCL_L1_SHARED_MEMORY_CARVEOUT",
                                           "NCCL_LAUNCH_MODE",
                                           "NCCL_LAUNCH_ORDER_IMPLICIT",
                                           "NCCL_LAUNCH_RACE_FATAL",
                                           "NCCL_LL128_BUFFSIZE",
                                           "NCCL_LL128_NTHREADS",
                                           "NCCL_LL_BUFFSIZE",
                                           "NCCL_LOCAL_REGISTER",
                                           "NCCL_LSA_TEAM_SIZE",
                                           "NCCL_MAX_CTAS",
                                           "NCCL_MAX_NCHANNELS",
                                           "NCCL_MAX_P2P_NCHANNELS",
                                           "NCCL_MAX_RINGS",
                                           "NCCL_MEM_SYNC_DOMAIN",
                                           "NCCL_MIN_CTAS",
                                           "NCCL_MIN_NCHANNELS",
                                           "NCCL_MIN_P2P_NCHANNELS",
                                           "NCCL_MIN_NRINGS",
                                           "NCCL_MNNVL_CLIQUE_ID",
                                           "NCCL_MNNVL_ENABLE",
                                           "NCCL_MNNVL_UUID",
                                           "NCCL_NCHANNELS_PER_NET_PEER",
                                           "NCCL_NCHANNELS_PER_PEER",
                                           "NCCL_NET",
                                           "NCCL_NETDEVS_POLICY",
                                           "NCCL_NET_DISABLE_INTRA",
                                           "NCCL_NET_FORCE_FLUSH",
                                           "NCCL_NET_FORCE_MERGE",
                                           "NCCL_NET_GDR_C2C",
                                           "NCCL_NET_GDR_LEVEL",
                                           "NCCL_NET_GDR_READ",
                                           "NCCL_NET_MERGE_LEVEL",
                                           "NCCL_NET_OPTIONAL_RECV_COMPLETION",
                                           "NCCL_NET_OVERHEAD",
                                           "NCCL_NET_PLUGIN",
                                           "NCCL_NET_SHARED_BUFFERS",
                                           "NCCL_NET_SHARED_COMMS",
                                           "NCCL_NSOCKS_PERTHREAD",
                                           "NCCL_NTHREADS",
                                           "NCCL_NVB_DISABLE",
                                           "NCCL_NVB_PRECONNECT",
                                           "NCCL_NVLSTREE_MAX_CHUNKSIZE",
                                           "NCCL_NVLS_CHUNKSIZE",
                                           "NCCL_NVLS_ENABLE",
                                           "NCCL_NVLS_NCHANNELS",
                                           "NCCL_NVTX_DISABLE",
                                           "NCCL_NCHANNELS",
                                           "NCCL_NRINGS",
                                           "NCCL_OOB_NET_ENABLE",
                                           "NCCL_OOB_NET_IFNAME",
                                           "NCCL_P2P_DIRECT_DISABLE",
                                           "NCCL_P2P_DISABLE",
                                           "NCCL_P2P_LEVEL",
                                           "NCCL_P2P_LL_THRESHOLD",
                                           "NCCL_P2P_NET_CHUNKSIZE",
                                           "NCCL_P2P_NVL_CHUNKSIZE",
                                           "NCCL_P2P_PCI_CHUNKSIZE",
                                           "NCCL_P2P_PER_CHANNEL_NET_BW",
                                           "NCCL_P2P_PXN_LEVEL",
                                           "NCCL_P2P_READ_ENABLE",
                                           "NCCL_P2P_SCHEDULE_GROUP_SIZE",
                                           "NCCL_P2P_USE_CUDA_MEMCPY",
                                           "NCCL_PROFILER_PLUGIN",
                                           "NCCL_PROFILE_EVENT_MASK",
                                           "NCCL_PROTO",
                                           "NCCL_PROGRESS_APPENDOP_FREQ",
                                           "NCCL_PROXY_APPEND_BATCH_SIZE",
                                           "NCCL_PROXY_CPUSET",
                                           "NCCL_PROXY_DUMP_SIGNAL",
                                           "NCCL_PXN_C2C",
                                           "NCCL_PXN_DISABLE",
                                           "NCCL_RAS_ADDR",
                                           "NCCL_RAS_ENABLE",
                                           "NCCL_RAS_TIMEOUT_FACTOR",
                                           "NCCL_REPORT_CONNECT_PROGRESS",
                                           "NCCL_RINGS",
                                           "NCCL_RUNTIME_CONNECT",
                                           "NCCL_SET_CPU_STACK_SIZE",
                                           "NCCL_SET_STACK_SIZE",
                                           "NCCL_SET_THREAD_NAME",
                                           "NCCL_SHARP_DISABLE",
                                           "NCCL_SHM_DISABLE",
                                           "NCCL_SHM_LOCALITY",
                                           "NCCL_SHM_MEMCPY_MODE",
                                           "NCCL_SHM_USE_CUDA_MEMCPY",
                                           "NCCL_SINGLE_RING_THRESHOLD",
                                           "NCCL_SINGLE_PROC_MEM_REG_ENABLE",
                                           "NCCL_SOCKET_FAMILY",
                                           "NCCL_SOCKET_IFNAME",
                                           "NCCL_SOCKET_INLINE",
                                           "NCCL_SOCKET_MIN_TASKSIZE",
                                           "NCCL_SOCKET_NTHREADS",
                                           "NCCL_SOCKET_POLL_TIMEOUT_MSEC",
                                           "NCCL_SOCKET_RCVBUF",
                                           "NCCL_SOCKET_REUSEADDR",
                                           "NCCL_SOCKET_RETRY_CNT",
                                           "NCCL_SOCKET_RETRY_SLEEP_MSEC",
                                           "NCCL_SOCKET_SNDBUF",
                                           "NCCL_SYM_CTAS",
                                           "NCCL_SYM_KERNEL",
                                           "NCCL_THREAD_THRESHOLDS",
                                           "NCCL_TOPO_DUMP_FILE",
                                           "NCCL_TOPO_DUMP_FILE_RANK",
                                           "NCCL_TOPO_FILE",
                                           "NCCL_TREE_THRESHOLD",
                                           "NCCL_TUNER_CONFIG_PATH",
                                           "NCCL_TUNER_PLUGIN",
                                           "NCCL_UID_STAGGER_RATE",
                                           "NCCL_UID_STAGGER_THRESHOLD",
                                           "NCCL_UNPACK_DOUBLE_NCHANNELS",
                                           "NCCL_WARN_ENABLE_DEBUG_INFO",
                                           "NCCL_WIN_ENABLE",
                                           "NCCL_WIN_STRIDE",
                                           "NCCL_WORK_ARGS_BYTES",
                                           "NCCL_WORK_FIFO_BYTES",
                                           "NCCL_WORK_FIFO_DEPTH",
                                           "NCCL_HOME",
                                           "NCCL_ROOT",
                                           "NCCL_ROOT_DIR",
                                           "NCCL_LIB_DIR",
                                           "NCCL_INCLUDE_DIR",
                                           "NCCL_LIBRARY",
                                           "NCCL_INCLUDE_DIRS",
                                           "NCCL_VERSION",
                                           "NCCL_LIBRARIES",
                                           "NCCL_BACKEND",
                                           "NCCL_CHUNK_SIZE",
                                           "NCCL_CONNECT_ROUND_MAX_PEERS",
                                           "NCCL_GIN_COUNTER_POOL_SIZE",
                                           "NCCL_GIN_ENABLE",
                                           "NCCL_GIN_ERROR_QUERY_SEC",
                                           "NCCL_GIN_GDAKI_NIC_HANDLER",
                                           "NCCL_GIN_GDAKI_QP_DEPTH",
                                           "NCCL_GIN_NCONTEXTS",
                                           "NCCL_GIN_PROXY_QUEUE_SIZE",
                                           "NCCL_GIN_SIGNAL_POOL_SIZE",
                                           "NCCL_GIN_TYPE",
                                           "NCCL_GRAPH_HELPER_DISABLE",
                                           "NCCL_GROUP_CUDA_STREAM",
                                           "NCCL_IB_MQP_RETRY_CNT",
                                           "NCCL_IB_ROUTABLE_FLID_GID_INDEX",
                                           "NCCL_LEGACY_CUDA_REGISTER",
                                           "NCCL_LL128_C2C",
                                           "NCCL_MAX_NRINGS",
                                           "NCCL_MNNVL_RAIL_PER_HOST",
                                           "NCCL_MNNVL_SCATTER_NETS_ENABLE",
                                           "NCCL_NET_PLUGIN_REF_COUNT",
                                           "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE",
                                           "NCCL_PAT_ENABLE",
                                           "NCCL_TIMEOUT"};

// What users write for them, too far off for a slip of the hand.
constexpr std::pair<std::string_view, std::string_view> kSlips[] = {{"IFNAME", "SOCKET_IFNAME"},
                                                                    {"FAMILY", "SOCKET_FAMILY"},
                                                                    {"HCA", "IB_HCA"},
                                                                    {"GID_INDEX", "IB_GID_INDEX"},
                                                                    {"PLUGIN", "NET_PLUGIN"}};

std::vector<std::string_view> sorted_words(std::string_view name) {
    std::vector<std::string_view> words;
    while (!name.empty()) {
        const auto end = std::min(name.find('_'), name.size());
        words.push_back(name.substr(0, end));
        name.remove_prefix(std::min(end + 1, name.size()));
    }
    std::sort(words.begin(), words.end());
    return words;
}

// The known name that is meant, as far as that can be told; empty: it may be another release's.
std::string_view meant_by(std::string_view end, const std::vector<std::string_view>& ends) {
    for (const auto& [slip, meant] : kSlips) {
        if (end == slip) {
            return meant;
        }
    }
    const auto words = sorted_words(end);  // DISABLE_IB
    const auto turned = std::find_if(ends.begin(), ends.end(), [&](std::string_view known) {
        return known.size() == end.size() && sorted_words(known) == words;
    });
    return turned == ends.end() ? nearest(end, ends) : *turned;
}

}  // namespace

std::vector<std::string> unknown_nccl_names(const std::vector<std::string>& names) {
    constexpr std::size_t kPrefix = std::string_view("NCCL_").size();
    std::vector<std::string_view> ends;  // the prefix alone would make all of them alike
    for (const std::string_view known : kNcclNames) {
        ends.push_back(known.substr(kPrefix));
    }
    std::vector<std::string> lines;
    for (const std::string& name : names) {
        const std::string_view end = std::string_view(name).substr(kPrefix);
        const bool known = std::find(ends.begin(), ends.end(), end) != ends.end();
        // Other releases have other names: one that resembles none may be right.
        const std::string_view guess = known ? std::string_view() : meant_by(end, ends);
        if (!guess.empty()) {
            lines.push_back(name + " is no known variable of NCCL's; did you mean NCCL_" +
                            std::string(guess) + "?");
        }
    }
    return lines;
}

}  // namespace deft::tools::doctor
