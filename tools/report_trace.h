// SPDX-License-Identifier: Apache-2.0
// A trace of the job's latest measured iterations, in the JSON that chrome://tracing and Perfetto
// read: docs/observe.md, "A trace".
#pragma once

#include <string>

#include "tools/report.h"

namespace deft::tools {

// One document. Without traced iterations it has names of ranks only.
std::string trace_text(const RunReport& run);

// Whether any rank has traced an iteration: mode off, jobs without a cycle, and writers of earlier
// releases have none.
bool has_trace(const RunReport& run);

}  // namespace deft::tools
