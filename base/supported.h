// SPDX-License-Identifier: Apache-2.0
// Releases of NCCL whose calls deft may change. With others it forwards every call.
#pragma once

namespace deft {

// They are known to leave bytes 64..127 of the unique id alone. As ncclGetVersion() counts.
inline constexpr int kOldestNccl = 21300;
inline constexpr int kNewestNccl = 23100;  // exclusive

}  // namespace deft
