// SPDX-License-Identifier: Apache-2.0
// The inner network interface: what a proxy needs of any network plugin, in the shape of the newest
// plugin table (deft_net_v12_t). One Net stands for one opened plugin, whatever version it exports.
//
// Results are ints with ncclResult_t's values (DEFT_NET_*). Threads: as for the table itself, see
// the call rules in plugin_loader.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "deft/abi/net.h"

namespace softdev::net {

using Properties = deft_net_props_v12_t;
using VProps = deft_net_vprops_v12_t;
using CommConfig = deft_net_comm_config_t;
using Attributes = deft_net_attr_t;
using DeviceHandle = deft_net_device_handle_t;

class Net {
public:
    virtual ~Net() = default;
    Net() = default;
    Net(const Net&) = delete;
    Net& operator=(const Net&) = delete;

    virtual const char* name() const = 0;         // as the table says it
    virtual int abi() const = 0;                  // 6..12, the table's version
    virtual bool external() const = 0;            // false for the built-in Socket
    virtual const std::string& file() const = 0;  // what was opened, "(internal)" if nothing

    // Per communicator. For tables up to v10 the plugin's own init runs for the first user only,
    // and *ctx belongs to the adapter (NCCL does the same).
    virtual int init(void** ctx, uint64_t comm_id, CommConfig* config, deft_net_logger_t logger,
                     deft_net_profiler_t profiler) = 0;
    virtual int finalize(void* ctx) = 0;
    virtual int set_net_attr(void* ctx, Attributes* attributes) = 0;  // no-op where absent

    virtual int devices(int* count) = 0;
    // Fills every field; what an old table cannot say gets NCCL's default.
    virtual int get_properties(int device, Properties* properties) = 0;
    virtual int make_vdevice(int* device, VProps* members) = 0;

    // handle has DEFT_NET_HANDLE_MAXSIZE bytes. Success with a NULL comm: call again with the same
    // buffer. The device handle, where a plugin sets one, is handed back and otherwise left NULL.
    virtual int listen(void* ctx, int device, void* handle, void** listen_comm) = 0;
    virtual int connect(void* ctx, int device, void* handle, void** send_comm,
                        DeviceHandle** device_handle) = 0;
    virtual int accept(void* listen_comm, void** recv_comm, DeviceHandle** device_handle) = 0;

    virtual int reg_mr(void* comm, void* data, size_t bytes, int type, void** mhandle) = 0;
    virtual int reg_mr_dmabuf(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                              int fd, void** mhandle) = 0;
    virtual int dereg_mr(void* comm, void* mhandle) = 0;

    // Success with a NULL request: not now, call again with the same arguments. What *request holds
    // on entry means nothing, here and in irecv: NCCL passes what an earlier call has left there.
    virtual int isend(void* send_comm, void* data, size_t bytes, int tag, void* mhandle,
                      void* phandle, void** request) = 0;
    // DEFT_NET_OPTIONAL_RECV_COMPLETION in *request on entry: the caller allows early completion.
    virtual int irecv(void* recv_comm, int n, void** data, size_t* bytes, int* tags,
                      void** mhandles, void** phandles, void** request) = 0;
    virtual int iflush(void* recv_comm, int n, void** data, int* bytes, void** mhandles,
                       void** request) = 0;
    virtual int test(void* request, int* done, int* bytes) = 0;
    virtual int get_device_mr(void* comm, void* mhandle, void** device_mhandle) = 0;
    virtual int irecv_consumed(void* recv_comm, int n, void* request) = 0;  // no-op where absent

    virtual int close_send(void* send_comm) = 0;
    virtual int close_recv(void* recv_comm) = 0;
    virtual int close_listen(void* listen_comm) = 0;
};

// "ncclSystemError (2)"; for messages.
std::string result_text(int result);

}  // namespace softdev::net
