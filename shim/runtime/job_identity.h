// SPDX-License-Identifier: Apache-2.0
// Which job this process belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deft {

struct JobIdentity {
    std::string id;       // the scheduler's or the launcher's; empty: there is none
    std::string command;  // of this process, its words with blanks between them, cut after 1 KiB
    std::string started;  // when the process was started, UTC: "2026-11-26T15:07:50Z"
};

// Of this process: from the environment and the command line that it was started with, as the
// kernel keeps them. Nothing is asked of the environment that the job may be changing.
JobIdentity own_job();

// The same from what /proc/self/environ and /proc/self/cmdline hold. Pure.
std::string job_id_in(std::string_view environment);
std::string command_in(std::string_view words);
// "2026-11-26T15:07:50Z" of seconds since 1970. Pure.
std::string utc_text(std::int64_t seconds);

}  // namespace deft
