// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/table_net.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "softdev/net/logger.h"
#include "softdev/net/net_bytes.h"

namespace softdev::net {
namespace {

template <int V>
struct Abi;
template <>
struct Abi<6> {
    using Table = deft_net_v6_t;
    using Props = deft_net_props_v6_t;
};
template <>
struct Abi<7> {
    using Table = deft_net_v7_t;
    using Props = deft_net_props_v7_t;
};
template <>
struct Abi<8> {
    using Table = deft_net_v8_t;
    using Props = deft_net_props_v8_t;
};
template <>
struct Abi<9> {
    using Table = deft_net_v9_t;
    using Props = deft_net_props_v9_t;
};
template <>
struct Abi<10> {
    using Table = deft_net_v10_t;
    using Props = deft_net_props_v9_t;
};
template <>
struct Abi<11> {
    using Table = deft_net_v11_t;
    using Props = deft_net_props_v11_t;
};
template <>
struct Abi<12> {
    using Table = deft_net_v12_t;
    using Props = deft_net_props_v12_t;
};

constexpr int kMaxRecvs = 8;  // most buffers NCCL groups in one irecv

// Up to v10 a table knows nothing of communicators; this stands in for its context.
struct AdapterContext {
    CommConfig config;  // v10: the address passed to every connect
};

template <int V>
class TableNet final : public Net {
public:
    using Table = typename Abi<V>::Table;
    using Props = typename Abi<V>::Props;

    TableNet(const void* table, bool external, std::string file, bool config_on_stack)
        : table_(static_cast<const Table*>(table)),
          external_(external),
          config_on_stack_(config_on_stack),
          file_(std::move(file)),
          bytes_(table_->name) {}

    const char* name() const override { return table_->name; }
    int abi() const override { return V; }
    bool external() const override { return external_; }
    const std::string& file() const override { return file_; }

    int init(void** ctx, uint64_t comm_id, CommConfig* config, deft_net_logger_t logger,
             deft_net_profiler_t profiler) override {
        *ctx = nullptr;
        if constexpr (V >= 11) {
            return table_->init(ctx, comm_id, config, logger, profiler);
        } else {
            if (users_ == 0) {
                int result;
                if constexpr (V == 10) {
                    result = table_->init(logger, profiler);
                } else {
                    result = table_->init(logger);
                }
                if (result != DEFT_NET_SUCCESS) {
                    return result;
                }
            }
            ++users_;
            *ctx = new AdapterContext{*config};
            return DEFT_NET_SUCCESS;
        }
    }

    int finalize(void* ctx) override {
        if constexpr (V >= 11) {
            return table_->finalize(ctx);
        } else {
            if (ctx != nullptr) {
                --users_;
                delete static_cast<AdapterContext*>(ctx);
            }
            return DEFT_NET_SUCCESS;
        }
    }

    int set_net_attr([[maybe_unused]] void* ctx, [[maybe_unused]] Attributes* attributes) override {
        if constexpr (V >= 11) {
            return table_->setNetAttr != nullptr ? table_->setNetAttr(ctx, attributes)
                                                 : DEFT_NET_SUCCESS;
        } else {
            return DEFT_NET_SUCCESS;
        }
    }

    int devices(int* count) override { return table_->devices(count); }

    int get_properties(int device, Properties* properties) override {
        Props p;
        // NCCL hands over an uninitialised struct; a pattern makes a field left unset visible.
        std::memset(static_cast<void*>(&p), 0xa5, sizeof p);
        const int result = table_->getProperties(device, &p);
        if (result != DEFT_NET_SUCCESS) {
            return result;
        }
        *properties = {};
        properties->name = p.name;
        properties->pciPath = p.pciPath;
        properties->guid = p.guid;
        properties->ptrSupport = p.ptrSupport;
        properties->speed = p.speed;
        properties->port = p.port;
        properties->latency = p.latency;
        properties->maxComms = p.maxComms;
        properties->maxRecvs = p.maxRecvs;
        properties->netDeviceType = DEFT_NET_DEVICE_HOST;
        properties->netDeviceVersion = DEFT_NET_DEVICE_HOST_VERSION;
        properties->vProps.ndevs = 1;
        properties->vProps.devs[0] = device;
        properties->maxP2pBytes = DEFT_NET_MAX_SIZE_INT32;
        properties->maxCollBytes = DEFT_NET_MAX_SIZE_INT32;
        properties->maxMultiRequestSize = 1;
        properties->railId = -1;
        properties->planeId = -1;
        if constexpr (V >= 7) {
            properties->netDeviceType = p.netDeviceType;
            properties->netDeviceVersion = p.netDeviceVersion;
        }
        if constexpr (V >= 8) {
            properties->regIsGlobal = p.regIsGlobal;
        }
        if constexpr (V >= 9) {
            properties->forceFlush = p.forceFlush;
            properties->vProps.ndevs = p.vProps.ndevs;
            std::copy(std::begin(p.vProps.devs), std::end(p.vProps.devs), properties->vProps.devs);
            properties->maxP2pBytes = p.maxP2pBytes;
            properties->maxCollBytes = p.maxCollBytes;
        }
        if constexpr (V >= 11) {
            properties->maxMultiRequestSize = p.maxMultiRequestSize;
        }
        if constexpr (V >= 12) {
            properties->railId = p.railId;
            properties->planeId = p.planeId;
        }
        return DEFT_NET_SUCCESS;
    }

    int make_vdevice(int* device, VProps* members) override {
        if constexpr (V >= 12) {
            return table_->makeVDevice != nullptr ? table_->makeVDevice(device, members)
                                                  : refuse("makeVDevice");
        } else if constexpr (V >= 9) {
            if (table_->makeVDevice == nullptr || members->ndevs > DEFT_NET_MAX_DEVS_V11) {
                return refuse("makeVDevice");
            }
            deft_net_vprops_v9_t old{};
            old.ndevs = members->ndevs;
            std::copy_n(members->devs, members->ndevs, old.devs);
            return table_->makeVDevice(device, &old);
        } else {
            return refuse("makeVDevice");
        }
    }

    int listen([[maybe_unused]] void* ctx, int device, void* handle, void** listen_comm) override {
        if constexpr (V >= 11) {
            return table_->listen(ctx, device, handle, listen_comm);
        } else {
            return table_->listen(device, handle, listen_comm);
        }
    }

    int connect([[maybe_unused]] void* ctx, int device, void* handle, void** send_comm,
                [[maybe_unused]] DeviceHandle** device_handle) override {
        if constexpr (V >= 11) {
            return table_->connect(ctx, device, handle, send_comm, device_handle);
        } else if constexpr (V == 10) {
            CommConfig& kept = static_cast<AdapterContext*>(ctx)->config;
            if (!config_on_stack_) {
                return table_->connect(device, &kept, handle, send_comm, device_handle);
            }
            CommConfig passing = kept;
            const int result = table_->connect(device, &passing, handle, send_comm, device_handle);
            // A plugin that kept the pointer shall not find the old value there.
            *const_cast<volatile int*>(&passing.trafficClass) = 0x5a5a5a5a;
            return result;
        } else if constexpr (V >= 7) {
            return table_->connect(device, handle, send_comm, device_handle);
        } else {
            return table_->connect(device, handle, send_comm);
        }
    }

    int accept(void* listen_comm, void** recv_comm,
               [[maybe_unused]] DeviceHandle** device_handle) override {
        if constexpr (V >= 7) {
            return table_->accept(listen_comm, recv_comm, device_handle);
        } else {
            return table_->accept(listen_comm, recv_comm);
        }
    }

    int reg_mr(void* comm, void* data, size_t bytes, int type, void** mhandle) override {
        if constexpr (V >= 8) {
            return table_->regMr(comm, data, bytes, type, mhandle);
        } else {
            if (bytes >= size_t{1} << 31) {
                SOFTNET_WARN(
                    "NET/%s: regMr of %zu bytes: plugin tables up to v7 take less than 2 GiB",
                    name(), bytes);
                return DEFT_NET_INTERNAL_ERROR;
            }
            return table_->regMr(comm, data, static_cast<int>(bytes), type, mhandle);
        }
    }

    int reg_mr_dmabuf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                      void** mhandle) override {
        return table_->regMrDmaBuf != nullptr
                   ? table_->regMrDmaBuf(comm, data, bytes, type, offset, fd, mhandle)
                   : refuse("regMrDmaBuf");
    }

    int dereg_mr(void* comm, void* mhandle) override { return table_->deregMr(comm, mhandle); }

    int isend(void* send_comm, void* data, size_t bytes, int tag, void* mhandle,
              [[maybe_unused]] void* phandle, void** request) override {
        int result = DEFT_NET_SUCCESS;
        if constexpr (V >= 10) {
            result = table_->isend(send_comm, data, bytes, tag, mhandle, phandle, request);
        } else if constexpr (V == 9) {
            result = table_->isend(send_comm, data, bytes, tag, mhandle, request);
        } else {
            if (bytes > DEFT_NET_MAX_SIZE_INT32) {
                return too_large("isend", bytes);
            }
            result = table_->isend(send_comm, data, static_cast<int>(bytes), tag, mhandle, request);
        }
        if (result == DEFT_NET_SUCCESS && *request != nullptr) {
            bytes_.sent(bytes);
        }
        return result;
    }

    int irecv(void* recv_comm, int n, void** data, size_t* bytes, int* tags, void** mhandles,
              [[maybe_unused]] void** phandles, void** request) override {
        if constexpr (V >= 10) {
            return table_->irecv(recv_comm, n, data, bytes, tags, mhandles, phandles, request);
        } else if constexpr (V == 9) {
            return table_->irecv(recv_comm, n, data, bytes, tags, mhandles, request);
        } else {
            int sizes[kMaxRecvs];
            if (n > kMaxRecvs) {
                return refuse("irecv of more than 8 buffers");
            }
            for (int i = 0; i < n; ++i) {
                if (bytes[i] > DEFT_NET_MAX_SIZE_INT32) {
                    return too_large("irecv", bytes[i]);
                }
                sizes[i] = static_cast<int>(bytes[i]);
            }
            if (*request == DEFT_NET_OPTIONAL_RECV_COMPLETION) {
                *request = nullptr;  // came with v9
            }
            return table_->irecv(recv_comm, n, data, sizes, tags, mhandles, request);
        }
    }

    int iflush(void* recv_comm, int n, void** data, int* bytes, void** mhandles,
               void** request) override {
        return table_->iflush(recv_comm, n, data, bytes, mhandles, request);
    }

    int test(void* request, int* done, int* bytes) override {
        return table_->test(request, done, bytes);
    }

    int get_device_mr([[maybe_unused]] void* comm, [[maybe_unused]] void* mhandle,
                      [[maybe_unused]] void** device_mhandle) override {
        if constexpr (V >= 7) {
            if (table_->getDeviceMr != nullptr) {
                return table_->getDeviceMr(comm, mhandle, device_mhandle);
            }
        }
        return refuse("getDeviceMr");
    }

    int irecv_consumed([[maybe_unused]] void* recv_comm, [[maybe_unused]] int n,
                       [[maybe_unused]] void* request) override {
        if constexpr (V >= 7) {
            if (table_->irecvConsumed != nullptr) {
                return table_->irecvConsumed(recv_comm, n, request);
            }
        }
        return DEFT_NET_SUCCESS;
    }

    int close_send(void* send_comm) override { return table_->closeSend(send_comm); }
    int close_recv(void* recv_comm) override { return table_->closeRecv(recv_comm); }
    int close_listen(void* listen_comm) override { return table_->closeListen(listen_comm); }

private:
    int refuse(const char* what) const {
        SOFTNET_WARN("NET/%s: %s is not offered by its v%d table", name(), what, V);
        return DEFT_NET_INTERNAL_ERROR;
    }
    int too_large(const char* what, size_t bytes) const {
        SOFTNET_WARN("NET/%s: %s of %zu bytes: plugin tables up to v8 take 1 GiB at most", name(),
                     what, bytes);
        return DEFT_NET_INTERNAL_ERROR;
    }

    const Table* table_;
    bool external_;
    bool config_on_stack_;
    std::string file_;
    NetBytes bytes_;
    int users_ = 0;  // up to v10: communicators inside; guarded by the registry's lock
};

}  // namespace

std::unique_ptr<Net> make_table_net(int abi, const void* table, bool external, std::string file,
                                    int nccl_version) {
    const bool config_on_stack = nccl_version >= 22600 && nccl_version < 22800;
    switch (abi) {
        case 6:
            return std::make_unique<TableNet<6>>(table, external, std::move(file), false);
        case 7:
            return std::make_unique<TableNet<7>>(table, external, std::move(file), false);
        case 8:
            return std::make_unique<TableNet<8>>(table, external, std::move(file), false);
        case 9:
            return std::make_unique<TableNet<9>>(table, external, std::move(file), false);
        case 10:
            return std::make_unique<TableNet<10>>(table, external, std::move(file),
                                                  config_on_stack);
        case 11:
            return std::make_unique<TableNet<11>>(table, external, std::move(file), false);
        case 12:
            return std::make_unique<TableNet<12>>(table, external, std::move(file), false);
        default:
            return nullptr;
    }
}

std::string result_text(int result) {
    static constexpr const char* names[] = {
        "ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
        "ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress"};
    const bool known = result >= 0 && result < static_cast<int>(std::size(names));
    return std::string(known ? names[result] : "unknown result") + " (" + std::to_string(result) +
           ")";
}

}  // namespace softdev::net
