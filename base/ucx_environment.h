// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

namespace deft {

struct Assignment {
    const char* name;
    const char* value;
};

// What has to stand in the environment before a process loads UCX. Else UCX overwrites the first
// bytes of munmap, takes over signals of errors, and (whatever UCX_HANDLE_ERRORS says) SIGHUP.
// `deft run` sets them; a guest may not.
inline constexpr std::array<Assignment, 3> kUcxEnvironment = {
    {{"UCX_MEM_MMAP_HOOK_MODE", "none"}, {"UCX_HANDLE_ERRORS", "none"}, {"UCX_DEBUG_SIGNO", "0"}}};

}  // namespace deft
