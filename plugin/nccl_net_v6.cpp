// SPDX-License-Identifier: Apache-2.0
// NCCL net plugin, version 6.
#include "plugin/nccl_net_common.h"

namespace deft::net {
namespace {

int init_v6(deft_net_logger_t logger) {
    return api::init(nullptr, DEFT_NET_TRAFFIC_CLASS_UNDEF, logger, 6);
}

int connect_v6(int device, void* handle, void** comm) {
    return api::connect(nullptr, device, handle, comm);
}

int isend_v6(void* comm, void* data, int size, int, void* memory, void** request) {
    return isend_int(comm, data, size, memory, request);
}

int irecv_v6(void* comm, int count, void** data, int* sizes, int*, void** memories,
             void** request) {
    return irecv_int(comm, count, data, sizes, memories, request);
}

}  // namespace
}  // namespace deft::net

DEFT_EXPORT const deft_net_v6_t ncclNetPlugin_v6 = {
    .name = deft::net::api::kName,
    .init = deft::net::init_v6,
    .devices = deft::net::api::devices,
    .getProperties = deft::net::fill_properties,
    .listen = deft::net::listen_v6,
    .connect = deft::net::connect_v6,
    .accept = deft::net::api::accept,
    .regMr = deft::net::reg_mr_int,
    .regMrDmaBuf = deft::net::api::reg_mr_dmabuf,
    .deregMr = deft::net::api::dereg_mr,
    .isend = deft::net::isend_v6,
    .irecv = deft::net::irecv_v6,
    .iflush = deft::net::api::iflush,
    .test = deft::net::api::test,
    .closeSend = deft::net::api::close_send,
    .closeRecv = deft::net::api::close_recv,
    .closeListen = deft::net::api::close_listen,
};
