// SPDX-License-Identifier: Apache-2.0
// The working folder that names of files are meant for: a job may change its own while it runs.
#pragma once

#include <string>

namespace deft {

// The first time: notes the folder in which the process is now.
void note_job_folder() noexcept;

// A name as it was meant there.
std::string in_job_folder(const std::string& name);

}  // namespace deft
