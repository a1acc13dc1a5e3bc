// SPDX-License-Identifier: Apache-2.0
// What several files of the interface share.
#pragma once

#include <infiniband/verbs.h>

#include "softdev/verbs/nic.h"

namespace softdev::verbs {

/// Drops events that nobody took, and waits for the acknowledgement of those that were taken.
void forget_events(Nic& nic, Qp& qp);

int poll_cq(ibv_cq* of, int most, ibv_wc* out);
int request_notification(ibv_cq* of, int solicited_only);

}  // namespace softdev::verbs
