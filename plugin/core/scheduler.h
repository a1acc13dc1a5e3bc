// SPDX-License-Identifier: Apache-2.0
// Which path takes the next chunk, and how a message is cut. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/core/clock.h"

namespace deft::net {

inline constexpr std::uint32_t kMinChunk = 16 * 1024;
inline constexpr std::uint32_t kChunkAlign = 128;  // NCCL's LL128 lines must not be split

// What the choice needs to know of a path.
struct PathOutlook {
    bool usable = false;
    double bytes_per_second = 1;
    std::uint64_t queued = 0;  // posted and not acknowledged
    Nanos latency = 0;
};

// Index of the path that would have `bytes` acknowledged first, or -1 if none is usable. The first
// one wins a tie.
int earliest_finish(std::span<const PathOutlook> paths, std::uint64_t bytes);

// Bytes per chunk of a message of `total` bytes on `usable` paths whose fastest delivers
// `fastest` bytes per second: a multiple of kChunkAlign, at least kMinChunk, such that there are at
// most 64; the whole message when there is one path, unless that needs half a second, or it is too
// small to share. Slow paths get small chunks: NCCL waits for a message of 64 KiB before the next
// step, and paths of 400 and 200 Mbit/s end it up to a chunk of the slower one apart, which of 64
// KiB lasts 2.6 ms.
std::uint32_t chunk_bytes(std::uint64_t total, std::size_t usable, double fastest);

}  // namespace deft::net
