// SPDX-License-Identifier: Apache-2.0
// Where processes of a user that run deft can be looked at while they run: `deft top`.
#pragma once

#include <sys/types.h>
#include <string>
#include <vector>

namespace deft {

// Folders for sockets "PID.sock" of this user, the preferred one first: in $XDG_RUNTIME_DIR, where
// that is a folder, and in /tmp.
std::vector<std::string> live_folders(uid_t user);

// The folder is there, is the user's, and nobody else may look into it.
bool is_private(const std::string& folder, uid_t user);

}  // namespace deft
