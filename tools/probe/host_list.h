// SPDX-License-Identifier: Apache-2.0
// The hosts that `deft probe` is about.
#pragma once

#include <string>
#include <vector>

namespace deft::tools::probe {

// Of a file as mpirun, pdsh and Open MPI read it: a host a line, "host slots=8", "host:8",
// comments behind '#'. Each host once. Pure.
std::vector<std::string> hosts_in(const std::string& text);

// Empty, or why this cannot be the name of a host. Pure.
std::string host_problem(const std::string& name);

// It is this host's own, or "localhost".
bool is_this_host(const std::string& name);

// The nodes of the Slurm job that this process is in, as scontrol says. Empty, and why, if it is in
// none.
std::vector<std::string> slurm_hosts(std::string& problem);

}  // namespace deft::tools::probe
