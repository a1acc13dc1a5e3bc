// SPDX-License-Identifier: Apache-2.0
// NCCL net plugin, version 7.
#include "plugin/nccl_net_common.h"

namespace deft::net {
namespace {

int init_v7(deft_net_logger_t logger) {
    return api::init(nullptr, DEFT_NET_TRAFFIC_CLASS_UNDEF, logger, 7);
}

int isend_v7(void* comm, void* data, int size, int, void* memory, void** request) {
    return isend_int(comm, data, size, memory, request);
}

int irecv_v7(void* comm, int count, void** data, int* sizes, int*, void** memories,
             void** request) {
    return irecv_int(comm, count, data, sizes, memories, request);
}

}  // namespace
}  // namespace deft::net

DEFT_EXPORT const deft_net_v7_t ncclNetPlugin_v7 = {
    .name = deft::net::api::kName,
    .init = deft::net::init_v7,
    .devices = deft::net::api::devices,
    .getProperties = deft::net::fill_properties,
    .listen = deft::net::listen_v6,
    .connect = deft::net::connect_v7,
    .accept = deft::net::accept_v7,
    .regMr = deft::net::reg_mr_int,
    .regMrDmaBuf = deft::net::api::reg_mr_dmabuf,
    .deregMr = deft::net::api::dereg_mr,
    .isend = deft::net::isend_v7,
    .irecv = deft::net::irecv_v7,
    .iflush = deft::net::api::iflush,
    .test = deft::net::api::test,
    .closeSend = deft::net::api::close_send,
    .closeRecv = deft::net::api::close_recv,
    .closeListen = deft::net::api::close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
};
