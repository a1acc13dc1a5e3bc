// SPDX-License-Identifier: Apache-2.0
// Shows a running process to `deft top`: a socket file of the user's, to which the records of the
// process's ranks are written while somebody looks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace deft {

// The background thread's. Waits for nobody; costs one system call a look while nobody is there.
class LiveSocket {
public:
    static constexpr std::int64_t kEvery = 1'000'000'000;  // nanoseconds, between snapshots
    static constexpr std::size_t kMostViewers = 8;

    ~LiveSocket() { close(); }

    // Makes "PID.sock" in the first of live_folders() that can be had. One that cannot be made is
    // said at INFO.
    void open() noexcept;

    // Lets viewers in and writes to them what they can take. True: one waits for a snapshot.
    bool wanted(std::int64_t now_ns) noexcept;

    // To those who wait: lines, and then an empty one.
    void give(const std::string& snapshot, std::int64_t now_ns) noexcept;

    // The file goes, and the viewers with it.
    void close() noexcept;

private:
    struct Viewer {
        UniqueFd socket;
        std::string rest;         // not taken yet
        std::int64_t due_ns = 0;  // of the next snapshot
    };
    bool listen_in(const std::string& folder);
    static bool write(Viewer& viewer) noexcept;

    UniqueFd socket_;
    std::string path_;
    std::vector<Viewer> viewers_;
};

}  // namespace deft
