// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "plugin/core/path.h"

namespace deft::net {

inline constexpr std::size_t kMaxChunks = 64;  // of one message: one bit each in a word

// Whether a chunk that a peer has told of can be: for every decoder of one. Pure.
inline bool sane_chunk(const Chunk& chunk) {
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
    return chunk.length == (left < chunk.chunk_size ? left : chunk.chunk_size);
}

}  // namespace deft::net
