// SPDX-License-Identifier: Apache-2.0
// Threads of the library's own, in a process that is somebody else's.
#pragma once

#include <cstddef>

namespace deft {

// Starts a thread that nobody joins. It takes no signal: the job's own threads may be waiting for
// it. `stack_bytes`: 0 for the system's default, where foreign code is to run. Returns 0, or what
// kept it from starting (pthread_create(3)); `argument` is then still the caller's.
int start_thread(const char* name, std::size_t stack_bytes, void* (*main)(void*),
                 void* argument) noexcept;

}  // namespace deft
