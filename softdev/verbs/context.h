// SPDX-License-Identifier: Apache-2.0
// Devices, and what ibv_open_device gives.
#pragma once

#include <infiniband/verbs.h>

#include "softdev/verbs/life.h"
#include "softdev/verbs/nic.h"
#include "softdev/verbs/settings.h"

namespace softdev::verbs {

struct Device : ibv_device {
    explicit Device(const DeviceSettings& from, int number);
    DeviceSettings settings;
    std::uint64_t guid = 0;  ///< host byte order
    int index = 0;
};

/// verbs_context ends with the ibv_context that programs see: nothing may be put between.
struct Context : verbs_context {
    explicit Context(Device& of);
    Device& device;
    Life life;
    Nic nic;
};

inline Context& context_of(ibv_context* context) {
    return static_cast<Context&>(*verbs_get_ctx(context));
}
inline Nic& nic_of(ibv_context* context) {
    return context_of(context).nic;
}

/// The port of that number; nullptr: there is none.
const Port* port_of(ibv_context* context, unsigned number);

/// ibv_context_ops: what programs call through the context.
void install_operations(Context& context);

}  // namespace softdev::verbs
