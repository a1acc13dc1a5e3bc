// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugin/core/clock.h"

namespace deft::net {

// True if nobody in this process was told so for `pause` about `about`: hundreds of connections to
// one peer have the same to say. Any thread. Of more than 512 subjects at a time some are left
// unsaid.
bool may_warn(const char* about, Nanos now, Nanos pause);

}  // namespace deft::net
