// SPDX-License-Identifier: Apache-2.0
// The names of NCCL's variables.
#pragma once

#include <string>
#include <vector>

namespace deft::tools::doctor {

// Names that begin with NCCL_ and are none of NCCL's, with a guess: one line each. Pure.
std::vector<std::string> unknown_nccl_names(const std::vector<std::string>& names);

}  // namespace deft::tools::doctor
