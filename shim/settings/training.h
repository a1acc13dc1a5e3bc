// SPDX-License-Identifier: Apache-2.0
// What the job's companion tells of the training itself: the loss of each iteration, and the norm
// of what its update got. include/deft/deft.h has the functions. Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "shim/executor/statistics.h"

namespace deft::director {

// A plan may come that delays or merges, and the guard is on.
bool training_wanted() noexcept;
// A norm reads all gradients once. It is wanted of some iterations, `late` or not, from the first
// iterations of a plan that is in force of each. Asked once an iteration.
bool norm_wanted(std::uint32_t module, bool late) noexcept;
void note_training(std::uint32_t module, const executor::Training& training) noexcept;
// What has been told of a module since it was last asked for, the oldest first.
std::vector<executor::Training> take_training(std::uint32_t module);

}  // namespace deft::director
