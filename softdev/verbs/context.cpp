// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/context.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace softdev::verbs {

Device::Device(const DeviceSettings& from, int number)
    : ibv_device{}, settings(from), guid(from.guid), index(number) {
    node_type = IBV_NODE_CA;
    transport_type = IBV_TRANSPORT_IB;
    std::snprintf(ibv_device::name, sizeof ibv_device::name, "%s", from.name.c_str());
    std::snprintf(dev_name, sizeof dev_name, "uverbs%d", number);
    std::snprintf(dev_path, sizeof dev_path, "/sys/class/infiniband_verbs/uverbs%d", number);
    std::snprintf(ibdev_path, sizeof ibdev_path, "/sys/class/infiniband/%s", from.name.c_str());
    if (guid == 0) {
        guid = guid_of(from.ports.front());
    }
}

Context::Context(Device& of) : verbs_context{}, device(of), nic(of.settings) {
    sz = sizeof(verbs_context);
    context.device = &of;
    context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    context.cmd_fd = -1;
    context.async_fd = nic.async.fd();
    context.num_comp_vectors = 1;
    pthread_mutex_init(&context.mutex, nullptr);
}

const Port* port_of(ibv_context* context, unsigned number) {
    const auto& ports = nic_of(context).ports();
    return number >= 1 && number <= ports.size() ? &ports[number - 1] : nullptr;
}

}  // namespace softdev::verbs
