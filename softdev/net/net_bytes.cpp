// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/net_bytes.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

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
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    std::string text;
    for (const auto& [name, bytes] : bytes_by_network()) {
        text += name + " " + std::to_string(bytes) + "\n";
    }
    // In one piece, over what is there and never shorter: a communicator that ends while the
    // process exits writes too, and may get no further than to open the file.
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file >= 0) {
        (void)!::write(file, text.data(), text.size());
        ::close(file);
    }
}

}  // namespace softdev::net
