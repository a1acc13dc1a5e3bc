// SPDX-License-Identifier: Apache-2.0
// What every call of a job's main has to be: successful. Else the process says which one was not,
// and ends with 1 at once, whatever its other threads do.
#pragma once

#include <nccl.h>

#include <cstdio>
#include <cstdlib>

namespace deft::test {

inline void check(int result, const char* what) {
    if (result != 0) {
        std::printf("%s failed: %d (%s)\n", what, result, ncclGetLastError(nullptr));
        std::fflush(stdout);
        std::_Exit(1);
    }
}

}  // namespace deft::test

#define MUST(call) deft::test::check(static_cast<int>(call), #call)
