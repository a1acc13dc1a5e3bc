// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/scheduler.h"

#include <algorithm>
#include <limits>

namespace deft::net {
namespace {

constexpr std::uint64_t kEnoughForAny = 64 << 10;
constexpr std::uint64_t kWholeChunk = 4 << 20;  // a path that comes back can take part of the rest
constexpr std::uint64_t kMaxChunk = 1 << 30;    // lengths on the wire have 32 bits

std::uint64_t align_up(std::uint64_t bytes) {
    return (bytes + kChunkAlign - 1) / kChunkAlign * kChunkAlign;
}

}  // namespace

int earliest_finish(std::span<const PathOutlook> paths, std::uint64_t bytes) {
    int best = -1;
    double best_finish = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < paths.size(); ++i) {
        const PathOutlook& path = paths[i];
        if (!path.usable) {
            continue;
        }
        const double finish =
            static_cast<double>(path.queued + bytes) * 1e9 / path.bytes_per_second +
            static_cast<double>(path.latency);
        if (finish < best_finish) {
            best_finish = finish;
            best = static_cast<int>(i);
        }
    }
    return best;
}

std::uint32_t chunk_bytes(std::uint64_t total, std::size_t usable, double fastest) {
    // One syscall and one acknowledgement per chunk: on fast links a chunk lasts 50 us at least,
    // and twice that where it is small.
    const std::uint64_t least = std::clamp<std::uint64_t>(
        static_cast<std::uint64_t>(fastest * 100e-6), kMinChunk, kEnoughForAny);
    const auto worth = static_cast<std::uint64_t>(fastest * 50e-6);
    std::uint64_t size = std::clamp<std::uint64_t>(worth, least, 1 << 20);
    if (usable <= 1 || total < 2 * least) {
        // On the slowest of links acknowledgements show that it moves: every half a second.
        const std::uint64_t whole = std::clamp<std::uint64_t>(
            static_cast<std::uint64_t>(fastest / 2), kEnoughForAny, kWholeChunk);
        size = std::min(total, whole);
    } else if (size > total / 2) {
        size = total / 2;
    }
    size = std::max(size, (total + 63) / 64);
    return static_cast<std::uint32_t>(std::min(align_up(size), kMaxChunk));
}

}  // namespace deft::net
