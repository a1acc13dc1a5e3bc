// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

namespace softdev::nccl {

// The value of an environment variable, or nothing when it is unset or empty.
std::optional<std::string> env_text(const char* name);

// Integer variable (decimal, 0x..., negative); malformed text is logged and the default is used, as
// NCCL does.
int64_t env_int(const char* name, int64_t fallback);
// As NCCL names its threads: with NCCL_SET_THREAD_NAME=1 only, cut to what Linux takes.
void name_thread(std::thread& thread, std::string name);

int nccl_version();  // SOFTDEV_NCCL_VERSION, default 22809

// How patient and how strict a communicator is. Read when it is made, by the thread that makes it:
// its own threads never look at the environment, which the application may be changing.
struct Limits {
    std::chrono::milliseconds stall;  // SOFTDEV_DEADLINE seconds, default 60
    std::chrono::milliseconds grace;  // SOFTDEV_NCCL_GRACE seconds, default 5
    bool strict;                      // SOFTDEV_STRICT is not "off"
    static Limits from_environment();
};

// Equal for ranks that NCCL would take to be on one host: NCCL_HOSTID, else host name, boot id and
// network namespace (so that namespaces on one machine count as hosts).
uint64_t host_hash();
uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed = 5381);
std::string host_name();

}  // namespace softdev::nccl
