// SPDX-License-Identifier: Apache-2.0
// Facts in which nothing is wrong, for tests to spoil.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/doctor/judge.h"

namespace deft::tools::doctor {

Config settings(std::vector<const char*> environment);

// An interface of 10 Gbit/s that is up, with an address of a network of 24 bits.
Interface link(const std::string& name, const std::string& address);

// A job about to start.
Facts healthy();

// One that runs, and what a rank of it has written.
ProcessFacts process();
ObserveFile record(std::int64_t rank);

// Another host, reached over one link.
PeerFacts peer();

// obstacle: why it is not driven; empty: it is.
RdmaPort rdma_port(const std::string& obstacle);

}  // namespace deft::tools::doctor
