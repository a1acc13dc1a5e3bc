// SPDX-License-Identifier: Apache-2.0
#include "base/job_folder.h"

#include <limits.h>
#include <unistd.h>

namespace deft {
namespace {

// Empty: it has no name, as where it was removed. Never destroyed: read inside exit().
const std::string& job_folder() {
    static const auto& folder = *new std::string([] {
        char path[PATH_MAX];
        return std::string(::getcwd(path, sizeof(path)) != nullptr ? path : "");
    }());
    return folder;
}

}  // namespace

void note_job_folder() noexcept {
    try {
        (void)job_folder();
    } catch (...) {  // no memory: noted later
    }
}

std::string in_job_folder(const std::string& name) {
    const std::string& folder = job_folder();
    // A process may be in a folder to which no path leads for it.
    static const bool leads_there = ::access(folder.c_str(), X_OK) == 0;
    return name.starts_with('/') || !leads_there ? name : folder + "/" + name;
}

}  // namespace deft
