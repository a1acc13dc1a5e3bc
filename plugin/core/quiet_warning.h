// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugin/core/clock.h"

namespace deft::net {

// True if nobody in this process was told so for `pause` about `about`: hundreds of connections to
// one peer have the same to say. Any thread; what collides in a small table is left unsaid.
bool may_warn(const char* about, Nanos now, Nanos pause);

}  // namespace deft::net
