// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a PyTorch job meet, before NCCL has any part in it.
#pragma once

#include <string>
#include <vector>

#include "tools/environment.h"

namespace deft::tools::doctor {

// Whether an address, with or without a port, is one under which each host finds itself. Pure.
bool is_loopback(const std::string& address);

// "what; remedy" where torchrun with these words has several hosts meet at an address that each of
// them takes for its own: then each waits for the others until a time-out. Empty: no such thing.
std::string lonely_rendezvous(const std::vector<std::string>& command,
                              const Environment& environment);

}  // namespace deft::tools::doctor
