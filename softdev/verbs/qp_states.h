// SPDX-License-Identifier: Apache-2.0
// Which attributes a reliable connection needs and may have at each change of its state, as the
// InfiniBand specification, 11.2.5.2, and the kernel's ib_modify_qp_is_ok() have it.
#pragma once

#include <infiniband/verbs.h>

#include <optional>

namespace softdev::verbs {

struct Transition {
    ibv_qp_state from;
    ibv_qp_state to;
    int required;
    int optional;
};

/// None: a queue pair cannot go from one to the other.
std::optional<Transition> transition(ibv_qp_state from, ibv_qp_state to);

/// The bits of a mask by their names, for messages: "IBV_QP_AV, IBV_QP_PORT".
const char* first_name(int mask);

/// nullptr, or the attribute of the mask whose value makes no sense on any device.
const char* bad_value(const ibv_qp_attr& attr, int mask);

}  // namespace softdev::verbs
