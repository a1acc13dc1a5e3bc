// SPDX-License-Identifier: Apache-2.0
// Which job this process belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deft {

struct OwnJob {
    std::string id;       // Config::job_id(), cut after 256 bytes; empty: there is none
    std::string command;  // of this process, its words with blanks between them, cut after 1 KiB
    std::string started;  // when the process was started, UTC: "2026-11-26T15:07:50Z"
    std::int64_t started_ns = 0;  // the same since 1970, to 10 ms; 0: not known
};

// Of this process, from the command line that it was started with, as the kernel keeps it.
OwnJob own_job();

// The same from what /proc/self/cmdline holds. Pure.
std::string command_in(std::string_view words);
// "2026-11-26T15:07:50Z" of seconds since 1970. Pure.
std::string utc_text(std::int64_t seconds);

}  // namespace deft
