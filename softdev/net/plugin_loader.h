// SPDX-License-Identifier: Apache-2.0
// Opens network plugins as NCCL does and hands one to each communicator.
//
// Environment, as in NCCL: NCCL_NET_PLUGIN (which files), NCCL_NET (which name; read at each open),
// NCCL_NET_PLUGIN_REF_COUNT. Of the software device: SOFTDEV_NCCL_VERSION (22809) says whose rules
// are followed, SOFTDEV_NET_ABI (6..12) looks for that one table version only.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softdev/net/net.h"

namespace softdev::net {

class NetRegistry;

// One communicator's hold on a network. Movable; releases itself.
class CommNet {
public:
    CommNet() = default;
    CommNet(CommNet&& other) noexcept;
    CommNet& operator=(CommNet&& other) noexcept;
    ~CommNet();

    explicit operator bool() const { return net_ != nullptr; }
    Net* net() const { return net_; }
    Net* operator->() const { return net_; }
    void* context() const { return context_; }  // first argument of listen, connect, set_net_attr
    int devices() const { return devices_; }

    // finalize(context), and the plugin is closed if this was its last communicator. All comms must
    // be closed and both proxy threads joined before. Returns finalize's result.
    int release();

private:
    friend class NetRegistry;
    NetRegistry* registry_ = nullptr;
    size_t plugin_ = 0;
    Net* net_ = nullptr;
    void* context_ = nullptr;
    int devices_ = 0;
};

// What a communicator brings along.
struct CommRequest {
    uint64_t comm_id = 0;                              // the communicator's hash
    const char* net_name = nullptr;                    // ncclConfig_t::netName or NULL
    int traffic_class = DEFT_NET_TRAFFIC_CLASS_UNDEF;  // ncclConfig_t::trafficClass
    deft_net_logger_t logger = nullptr;                // NULL: softdev::net::logger()
    deft_net_profiler_t profiler = nullptr;            // NULL: a no-op
};

class NetRegistry {
public:
    NetRegistry();
    ~NetRegistry();
    NetRegistry(const NetRegistry&) = delete;
    NetRegistry& operator=(const NetRegistry&) = delete;

    // The one of this process, never destroyed. Own objects are for tests.
    static NetRegistry& process();

    // Gives `out` the first usable network: externals in list order, then IB where there
    // are RDMA ports (ib_ports.h), then Socket. Any thread; one
    // lock is held throughout, also over the plugin's init and devices, as in NCCL.
    // Errors are logged: DEFT_NET_INVALID_USAGE when no network has the wanted name.
    int open(const CommRequest& request, CommNet* out);

    // The file of the external plugin that was opened last; empty: none is open. Any thread.
    std::string external_file();

private:
    friend class CommNet;
    struct Plugin;

    void read_environment();
    void add_internal(const char* name, const deft_net_v12_t* table);
    void load(Plugin& plugin);
    int start(Plugin& plugin, const CommRequest& request, void** context);
    void unload(Plugin& plugin);
    void disable(Plugin& plugin);
    void disable_other_externals(size_t assigned);
    int release(CommNet& comm);

    std::mutex mutex_;
    bool environment_read_ = false;
    std::string environment_error_;
    int nccl_version_ = 0;
    int forced_abi_ = 0;  // 0: all that nccl_version_ knows
    std::vector<std::unique_ptr<Plugin>> plugins_;
};

}  // namespace softdev::net
