// SPDX-License-Identifier: Apache-2.0
// `deft run --dry-run`: what would happen, as the doctor sees it.
#pragma once

#include <string>

#include "tools/doctor/facts.h"
#include "tools/doctor/finding.h"
#include "tools/run.h"

namespace deft::tools {

// Prints it and starts nothing. The exit code: that of `deft run` where it would refuse to start
// the command, else as of `deft doctor`: 0 nothing worse than notes, 1 warnings, 3 errors.
int dry_run(const RunOptions& options);

namespace doctor {

// Lines of comments, and the command as a line for a shell: the text may be run by one.
std::string dry_run_text(const RunOptions& options, const Launch& launch, const Facts& facts,
                         const Diagnoses& diagnoses);

}  // namespace doctor

}  // namespace deft::tools
