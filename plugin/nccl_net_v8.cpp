// SPDX-License-Identifier: Apache-2.0
// NCCL net plugin, version 8.
#include "plugin/nccl_net_common.h"

namespace deft::net {
namespace {

int init_v8(deft_net_logger_t logger) {
    return api::init(nullptr, DEFT_NET_TRAFFIC_CLASS_UNDEF, logger, 8);
}

int isend_v8(void* comm, void* data, int size, int, void* memory, void** request) {
    return isend_int(comm, data, size, memory, request);
}

int irecv_v8(void* comm, int count, void** data, int* sizes, int*, void** memories,
             void** request) {
    return irecv_int(comm, count, data, sizes, memories, request);
}

}  // namespace
}  // namespace deft::net

DEFT_EXPORT const deft_net_v8_t ncclNetPlugin_v8 = {
    .name = deft::net::api::kName,
    .init = deft::net::init_v8,
    .devices = deft::net::api::devices,
    .getProperties = deft::net::fill_properties,
    .listen = deft::net::listen_v6,
    .connect = deft::net::connect_v7,
    .accept = deft::net::accept_v7,
    .regMr = deft::net::api::reg_mr,
    .regMrDmaBuf = deft::net::api::reg_mr_dmabuf,
    .deregMr = deft::net::api::dereg_mr,
    .isend = deft::net::isend_v8,
    .irecv = deft::net::irecv_v8,
    .iflush = deft::net::api::iflush,
    .test = deft::net::api::test,
    .closeSend = deft::net::api::close_send,
    .closeRecv = deft::net::api::close_recv,
    .closeListen = deft::net::api::close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
};
