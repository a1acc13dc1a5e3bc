// SPDX-License-Identifier: Apache-2.0
// Programs that lose the preload on their way to other hosts or into another root. More of them
// than `deft run` warns about: these depend on how a site has set them up.
#pragma once

#include <string>
#include <vector>

#include "tools/environment.h"

namespace deft::tools::doctor {

// One line "what; remedy", or an empty string. Pure.
std::string wrapper_loss(const std::vector<std::string>& command);

// The same of srun, sbatch and apptainer, whose options may stand in the environment.
std::string variable_loss(const std::vector<std::string>& command, const Environment& environment);

// The same of a wrapper that keeps the preload, but starts its command in a container, of which
// nobody here knows whether it has the library. Empty where a word names deft. Pure.
std::string container_doubt(const std::vector<std::string>& command);

}  // namespace deft::tools::doctor
