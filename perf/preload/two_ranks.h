// SPDX-License-Identifier: Apache-2.0
// A hook's cost in two ranks on the software CUDA device. In the modes that plan they have agreed,
// and a director watches the gradients and forwards them.
#pragma once

#include <map>
#include <string>

#include "perf/preload/sample.h"

namespace deft::hook_cost {

struct DeviceCalls {  // ns of one call of the software device's
    double is_capturing = 0;
    double event_record = 0;
};

// Both ranks' run in that mode ("": without the preload), with `settings` and those it needs
// itself; figures are of rank 0. `state` is what the report says of the plan. Ends the program if
// it fails.
Figures run_two_ranks(const std::string& library, const std::string& mode, int batches,
                      std::map<std::string, std::string> settings, DeviceCalls& device,
                      std::string& state);

// In the child.
int measure_rank(int rank, int batches);

}  // namespace deft::hook_cost
