// SPDX-License-Identifier: Apache-2.0
// The job's optimizer, as far as it is known.
#pragma once

#include <string>
#include <string_view>

#include "shim/executor/prediction.h"

namespace deft::director {

// What the job, or what watches it, says; DEFT_OPTIMIZER wins. False if it is not understood. Any
// thread.
bool set_optimizer(std::string_view text) noexcept;

// By DEFT_OPTIMIZER, else as set, else unknown. Any thread.
executor::Optimizer known_optimizer();

}  // namespace deft::director
