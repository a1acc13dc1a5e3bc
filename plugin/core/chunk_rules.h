// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/core/path.h"

namespace deft::net {

inline constexpr std::size_t kMaxChunks = 64;  // of one message: one bit each in a word

// Whether a run of chunks that a peer has told of can be: for every decoder of one. Pure.
inline bool sane_run(const Chunk& chunk) {
    if (chunk.message == kProbe) {
        return false;
    }
    if (chunk.total == 0) {
        return chunk.length == 0 && chunk.offset == 0 && chunk.chunk_size == 0 && chunk.index == 0;
    }
    if (chunk.chunk_size == 0 || chunk.index >= kMaxChunks ||
        chunk.offset != std::uint64_t{chunk.index} * chunk.chunk_size ||
        chunk.offset >= chunk.total || (chunk.total - 1) / chunk.chunk_size >= kMaxChunks) {
        return false;
    }
    const std::uint64_t left = chunk.total - chunk.offset;
    return chunk.length == left ||
           (chunk.length != 0 && chunk.length < left && chunk.length % chunk.chunk_size == 0);
}

// The same for a single chunk.
inline bool sane_chunk(const Chunk& chunk) {
    return sane_run(chunk) && chunk.length <= chunk.chunk_size;
}

// A bit for each chunk of a sane run.
inline std::uint64_t bits_of(const Chunk& chunk) {
    const std::uint64_t count =
        chunk.length == 0 ? 1 : (chunk.length - 1) / chunk.chunk_size + std::uint64_t{1};
    return (count >= kMaxChunks ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1)
           << chunk.index;
}

}  // namespace deft::net
