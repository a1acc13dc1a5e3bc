// SPDX-License-Identifier: Apache-2.0
// What the agreement thread has to know of this process's host. It is read on the thread of the job
// that joins first: a getenv() on a thread of our own would race with the job's setenv().
#pragma once

#include <cstdint>
#include <vector>

#include "topology/interfaces.h"

namespace deft::agreement {

struct Surroundings {
    // A hash of NCCL_HOSTID, or 0: what NCCL takes for another host is one here too.
    std::uint64_t host = 0;
    // The interfaces that the process may use, as they were; and the numbers of those that have
    // one.
    InterfaceSelection interfaces;
    std::vector<std::uint32_t> links;

    // Looks, once in a process. Before the agreement thread starts.
    static void look();
    static const Surroundings& process();
};

}  // namespace deft::agreement
