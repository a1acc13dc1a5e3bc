// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a PyTorch job meet, before NCCL has any part in it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/environment.h"

namespace deft::tools::doctor {

// Whether a variable of this name says where the ranks of a job meet.
bool is_meeting_place(std::string_view name);

// Whether an address, with or without a port, is one under which each host finds itself. Pure.
bool is_loopback(const std::string& address);

// "what; remedy" where torchrun with these words has several hosts meet at an address that each of
// them takes for its own: then each waits for the others until a time-out. Empty: no such thing.
std::string lonely_rendezvous(const std::vector<std::string>& command,
                              const Environment& environment);

// What `hostname -i` prints for a host of this name, by the text of /etc/hosts: the loopback
// address that stands there for the name, as in Debian (127.0.1.1). Empty: another address or none.
// Pure.
std::string own_name_at(std::string_view hosts, std::string_view name);

// The value that stands for $(hostname -i): nobody replaces it here.
inline constexpr const char* kOwnAddress = "$(hostname -i)";

}  // namespace deft::tools::doctor
