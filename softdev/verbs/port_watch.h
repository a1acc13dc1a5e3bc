// SPDX-License-Identifier: Apache-2.0
// Hears from the kernel that an interface or an address came, went or changed.
#pragma once

#include "softdev/verbs/nic.h"

namespace softdev::verbs {

class NetlinkWatch : public Endpoint {
public:
    explicit NetlinkWatch(Nic& nic);
    void ready(unsigned events) override;

private:
    Nic& nic_;
};

}  // namespace softdev::verbs
