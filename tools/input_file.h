// SPDX-License-Identifier: Apache-2.0
// Reading a file that the user names, whatever it turns out to be.
#pragma once

#include <cstddef>
#include <string>

namespace deft::tools {

// All of a file or pipe, at most `limit` bytes. Refuses at once folders, devices, files that are
// larger, and pipes without a writer; a pipe with one may be silent for a minute. False and what is
// wrong, without the path, in `problem`.
bool read_input(const std::string& path, std::size_t limit, std::string& bytes,
                std::string& problem);

}  // namespace deft::tools
