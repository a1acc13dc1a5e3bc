// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) for what travels between hosts; the preloaded library
// may need nothing but libc. Not for large data: some 200 MB/s. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace deft {

using Sha256Digest = std::array<std::byte, 32>;

class Sha256 {
public:
    void add(std::span<const std::byte> data);
    // Once, at the end.
    Sha256Digest finish();

private:
    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> block_{};
    std::size_t used_ = 0;     // of block_
    std::uint64_t bytes_ = 0;  // in all

    void compress(const std::byte* block);
};

// Keeps what depends on the key alone.
class HmacSha256 {
public:
    explicit HmacSha256(std::span<const std::byte> key);
    // Of the two parts, one after the other.
    Sha256Digest of(std::span<const std::byte> first, std::span<const std::byte> second) const;

private:
    Sha256 inner_;
    Sha256 outer_;
};

// Takes the same time wherever the two differ. They are of one length.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace deft
