// SPDX-License-Identifier: Apache-2.0
// NCCL net plugin, version 10.
#include "plugin/nccl_net_common.h"

namespace deft::net {
namespace {

int init_v10(deft_net_logger_t logger, deft_net_profiler_t) {
    return api::init(nullptr, DEFT_NET_TRAFFIC_CLASS_UNDEF, logger, 10);
}

int connect_v10(int device, deft_net_comm_config_t*, void* handle, void** comm,
                deft_net_device_handle_t**) {
    return api::connect(nullptr, device, handle, comm);
}

}  // namespace
}  // namespace deft::net

DEFT_EXPORT const deft_net_v10_t ncclNetPlugin_v10 = {
    .name = deft::net::api::kName,
    .init = deft::net::init_v10,
    .devices = deft::net::api::devices,
    .getProperties = deft::net::fill_properties,
    .listen = deft::net::listen_v6,
    .connect = deft::net::connect_v10,
    .accept = deft::net::accept_v7,
    .regMr = deft::net::api::reg_mr,
    .regMrDmaBuf = deft::net::api::reg_mr_dmabuf,
    .deregMr = deft::net::api::dereg_mr,
    .isend = deft::net::isend_v10,
    .irecv = deft::net::irecv_v10,
    .iflush = deft::net::api::iflush,
    .test = deft::net::api::test,
    .closeSend = deft::net::api::close_send,
    .closeRecv = deft::net::api::close_recv,
    .closeListen = deft::net::api::close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = nullptr,
};
