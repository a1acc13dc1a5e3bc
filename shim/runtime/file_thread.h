// SPDX-License-Identifier: Apache-2.0
// deft-files, the thread that may wait as long as a file system likes: it looks for the kill switch.
// Nobody waits for it.
#pragma once

namespace deft {

// Starts it, once in a process. False: it cannot be started.
bool start_file_thread() noexcept;

}  // namespace deft
