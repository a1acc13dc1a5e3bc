// SPDX-License-Identifier: Apache-2.0
// What `deft --version` says besides the versions: what command and library need and offer.
#pragma once

#include <string>

namespace deft::tools {

// Lines, by the files themselves: of the library at this path, and of the running command.
std::string version_details(const std::string& library);

}  // namespace deft::tools
