// SPDX-License-Identifier: Apache-2.0
// Threads that stand for the blocks of a kernel. They must all run at the same time, in all kernels
// of the process, so there are as many as are asked for. Idle ones are kept.
#pragma once

#include <cstddef>
#include <functional>

namespace softdev::nccl_kernels {

/// Hears why work fails, on any thread, as soon as it does.
using Report = std::function<void(const char* why)>;

/// Calls body(0) ... body(count - 1) at the same time, the first of them on this thread, and
/// returns when all are over. The first exception of any of them, or of a thread that cannot be
/// started, is reported at once, because the others may wait for what never comes. When all that
/// began are over, the exception is thrown here.
void run_together(std::size_t count, const std::function<void(std::size_t)>& body,
                  const Report& report);

}  // namespace softdev::nccl_kernels
