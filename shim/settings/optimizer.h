// SPDX-License-Identifier: Apache-2.0
// The job's optimizer, as far as it is known.
#pragma once

#include <string>
#include <string_view>

#include "shim/executor/prediction.h"

namespace deft::director {

// What the job itself says, or else what watches it sees; DEFT_OPTIMIZER wins over both. False if
// it is not understood. Any thread.
bool set_optimizer(std::string_view text) noexcept;
bool observe_optimizer(std::string_view text) noexcept;

// The job multiplies its loss, and so its gradients, by a factor that changes. Whoever names the
// optimizer: a sum that comes late would carry an older factor. Any thread.
void set_gradient_scaling(bool scaled) noexcept;

// The job cuts its gradients to a norm or a range before its optimizer has them. Whoever names the
// optimizer. Any thread.
void set_gradient_clipping(bool clipped) noexcept;

// By DEFT_OPTIMIZER, else as set, else as observed, else unknown. Any thread.
executor::Optimizer known_optimizer();

}  // namespace deft::director
