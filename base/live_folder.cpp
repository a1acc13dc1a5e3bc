// SPDX-License-Identifier: Apache-2.0
#include "base/live_folder.h"

#include <sys/stat.h>
#include <cstdlib>

namespace deft {

std::vector<std::string> live_folders(uid_t user) {
    std::vector<std::string> folders;
    struct stat status {};
    const char* const own = std::getenv("XDG_RUNTIME_DIR");
    if (own != nullptr && own[0] == '/' && ::stat(own, &status) == 0 && S_ISDIR(status.st_mode) &&
        status.st_uid == user) {
        folders.push_back(std::string(own) + "/deft");
    }
    folders.push_back("/tmp/deft-" + std::to_string(user));
    return folders;
}

bool is_private(const std::string& folder, uid_t user) {
    struct stat status {};
    return ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
           status.st_uid == user && (status.st_mode & 077) == 0;
}

}  // namespace deft
