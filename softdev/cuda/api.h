// SPDX-License-Identifier: Apache-2.0
// cuda.h with its functions visible: the project compiles with hidden visibility, and the header's
// own declarations carry none.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include "softdev/cuda/softdev.h"

#define SOFTDEV_EXPORT extern "C" __attribute__((visibility("default")))
