// SPDX-License-Identifier: Apache-2.0
// What deft did for a job, in the one line that rank 0 logs at its end.
#pragma once

#include <string>

#include "shim/learning/track.h"
#include "shim/runtime/report.h"

namespace deft {

// `track` may be null. Reads the link counters of the process.
std::string job_line(const ReportFacts& facts, const Track* track);

}  // namespace deft
