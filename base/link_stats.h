// SPDX-License-Identifier: Apache-2.0
// What each link of this process has carried. The plugin writes, the shim's observer reads: the one
// place where the two halves of the library meet about links.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace deft {

// Upper bounds of the histogram of stalls, in seconds.
inline constexpr std::array kStallBounds = {0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0};

// Counters of one link. Written by any thread with relaxed atomics; never reset. Times in
// nanoseconds.
struct LinkCounters {
    char name[64] = "";                        // "eth0", "mlx5_0"; set before the slot is published
    char kind[16] = "";                        // "tcp", "verbs", "ucx"
    std::atomic<std::uint64_t> bytes_sent{0};  // payload, acknowledged or handed to the kernel
    std::atomic<std::uint64_t> bytes_received{0};
    std::atomic<std::uint64_t> chunks_sent{0};
    std::atomic<std::uint64_t> busy_ns{0};      // time with at least one transfer outstanding
    std::atomic<std::uint64_t> transitions{0};  // state changes (up, suspect, down, probing)
    std::atomic<std::uint64_t> resent_bytes{0};
    std::atomic<std::int64_t> speed_mbps{0};  // nominal or measured rate, Mbit/s; 0 unknown
    // Sending paths that are up; and those that were, and are silent or lost now.
    std::atomic<std::int64_t> paths_up{0};
    std::atomic<std::int64_t> paths_away{0};
    // How often a path was away for at most kStallBounds[i] seconds until it was back; last:
    // longer.
    std::array<std::atomic<std::uint64_t>, kStallBounds.size() + 1> stalls{};
    std::atomic<std::uint64_t> stall_ns{0};  // in all

    void note_stall(std::int64_t nanoseconds) noexcept;
};

// Fixed table of at most kMaxLinks links; a slot, once given to a name, keeps its meaning for the
// life of the process. Thread-safe. Never allocates.
class LinkStats {
public:
    static constexpr std::size_t kMaxLinks = 64;

    static LinkStats& process();

    // The counters of the link with this name and kind, made at the first call; when the table is
    // full, a shared overflow slot named "other".
    LinkCounters& link(const char* name, const char* kind) noexcept;

    // The same, but NULL if it has not been made.
    const LinkCounters* find(const char* name, const char* kind) const noexcept;

    std::size_t size() const { return count_.load(std::memory_order_acquire); }
    const LinkCounters& operator[](std::size_t index) const { return links_[index]; }

    // Calls NCCL made into the plugin, and the ABI version it chose (0: never loaded as a plugin).
    std::atomic<std::uint64_t> plugin_calls{0};
    std::atomic<int> plugin_version{0};

private:
    std::array<LinkCounters, kMaxLinks + 1> links_;
    std::atomic<std::size_t> count_{0};
    std::atomic_flag adding_ = ATOMIC_FLAG_INIT;
};

}  // namespace deft
