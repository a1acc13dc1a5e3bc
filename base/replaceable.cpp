// SPDX-License-Identifier: Apache-2.0
#include "base/replaceable.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

namespace deft {

Place place_of(std::string& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) {
        return Place::Replaceable;  // whether it can be made is seen when it is
    }
    if (S_ISLNK(status.st_mode)) {
        char target[PATH_MAX];
        // /dev/stdout leads to whatever a shell has opened, a log of the job's for instance.
        if (path.starts_with("/dev/") || path.starts_with("/proc/") ||
            ::realpath(path.c_str(), target) == nullptr || ::lstat(target, &status) != 0) {
            return Place::Other;
        }
        path = target;
    }
    if (S_ISCHR(status.st_mode) && status.st_rdev == ::makedev(1, 3)) {
        return Place::Nowhere;
    }
    return S_ISREG(status.st_mode) ? Place::Replaceable : Place::Other;
}

}  // namespace deft
