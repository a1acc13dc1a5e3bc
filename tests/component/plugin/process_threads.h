// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dirent.h>
#include <sched.h>

#include <fstream>
#include <string>

#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {

// Threads of this process that have this name.
inline std::size_t threads_named(const std::string& wanted) {
    std::size_t count = 0;
    DIR* directory = opendir("/proc/self/task");
    while (const dirent* entry = readdir(directory)) {
        std::ifstream name(std::string("/proc/self/task/") + entry->d_name + "/comm");
        std::string text;
        count += std::getline(name, text) && text == wanted ? 1 : 0;
    }
    closedir(directory);
    return count;
}

// False after too long, or once something else has failed.
template <class Condition>
bool wait_for(Condition&& condition) {
    const Nanos deadline = steady_now() + kPatience;
    while (!condition()) {
        if (steady_now() > deadline || ::testing::Test::HasFailure()) {
            return false;
        }
        ::sched_yield();
    }
    return true;
}

}  // namespace deft::net::testing
