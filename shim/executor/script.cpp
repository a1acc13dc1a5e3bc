// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/script.h"

#include <algorithm>

#include "shim/nccl/call.h"

namespace deft::executor {

std::uint64_t Shape::bytes() const {
    return count * element_size(type);
}

bool Script::forwards_all() const {
    return std::all_of(actions.begin(), actions.end(),
                       [](const Action& a) { return a.forward && a.nothing(); });
}

}  // namespace deft::executor
