// SPDX-License-Identifier: Apache-2.0
// Which NCCL a command will use, by the files alone.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/command_facts.h"
#include "tools/doctor/facts.h"

namespace deft::tools::doctor {

// `started`: what was started to find out.
NcclFacts find_nccl(const Job& job, std::vector<std::string>& started);

// The version of a file that holds NCCL: its name, the text in it, at last what it answers itself
// (a child process opens it, which is then in `started`).
NcclCopy read_nccl_file(const std::string& path, const std::string& found_by,
                        std::vector<std::string>& started);

// 22809 of "2.28.9" and of "libnccl.so.2.28.9"; 0: it has no version. Pure.
int nccl_version_in(const std::string& text);

// Folders in which this Python looks for packages, as far as files tell. `interpreter` as it was
// found in PATH: of a virtual environment that is a link.
std::vector<std::string> python_folders(const std::string& interpreter,
                                        const Environment& environment);

}  // namespace deft::tools::doctor
