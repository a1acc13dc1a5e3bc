// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace deft {

// Random bytes of the kernel's, fit for secrets; also where a sandbox denies getrandom(2). False,
// with errno, if there are none. Any thread.
bool random_bytes(void* data, std::size_t size);

}  // namespace deft
