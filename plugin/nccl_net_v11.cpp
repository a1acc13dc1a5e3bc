// SPDX-License-Identifier: Apache-2.0
// NCCL net plugin, version 11.
#include "plugin/nccl_net_common.h"

namespace deft::net {
namespace {

int init_v11(void** context, std::uint64_t communicator, deft_net_comm_config_t* config,
             deft_net_logger_t logger, deft_net_profiler_t) {
    return init_with_context(context, communicator, config, logger, 11);
}

}  // namespace
}  // namespace deft::net

DEFT_EXPORT const deft_net_v11_t ncclNetPlugin_v11 = {
    .name = deft::net::api::kName,
    .init = deft::net::init_v11,
    .devices = deft::net::api::devices,
    .getProperties = deft::net::fill_properties,
    .listen = deft::net::api::listen,
    .connect = deft::net::connect_v11,
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
    .finalize = deft::net::api::finalize,
    .setNetAttr = deft::net::api::set_attributes,
};
