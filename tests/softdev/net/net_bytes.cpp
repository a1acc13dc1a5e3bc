// SPDX-License-Identifier: Apache-2.0
#include "tests/softdev/net/net_bytes.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>

namespace softdev::net {
namespace {

struct Counts {
    std::mutex mutex;
    std::map<std::string, std::atomic<std::uint64_t>> by_name;
};

Counts& counts() {
    static auto* const all = [] {
        std::atexit(write_bytes_file);
        return new Counts;  // never destroyed: threads may outlive exit()
    }();
    return *all;
}

}  // namespace

NetBytes::NetBytes(const char* name) {
    Counts& all = counts();
    const std::lock_guard lock(all.mutex);
    count_ = &all.by_name[name];
}

void NetBytes::sent(std::size_t bytes) {
    static_cast<std::atomic<std::uint64_t>*>(count_)->fetch_add(bytes, std::memory_order_relaxed);
}

std::map<std::string, std::uint64_t> bytes_by_network() {
    Counts& all = counts();
    const std::lock_guard lock(all.mutex);
    return {all.by_name.begin(), all.by_name.end()};
}

void write_bytes_file() {
    const char* const pattern = std::getenv("SOFTDEV_NET_BYTES");
    if (pattern == nullptr || *pattern == '\0') {
        return;
    }
    std::string path = pattern;
    if (const size_t at = path.find("%p"); at != path.npos) {
        path.replace(at, 2, std::to_string(::getpid()));
    }
    std::ofstream file(path);
    for (const auto& [name, bytes] : bytes_by_network()) {
        file << name << " " << bytes << "\n";
    }
}

}  // namespace softdev::net
