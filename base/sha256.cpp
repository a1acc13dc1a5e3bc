// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <algorithm>
#include <bit>

namespace deft {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t word_at(const std::byte* at) {
    std::uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
        word = word << 8 | std::to_integer<std::uint32_t>(at[i]);
    }
    return word;
}

void put_word(std::uint32_t word, std::byte* at) {
    for (int i = 0; i < 4; ++i) {
        at[i] = static_cast<std::byte>(word >> (24 - 8 * i));
    }
}

}  // namespace

void Sha256::compress(const std::byte* block) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) {
        w[i] = word_at(block + 4 * i);
    }
    for (std::size_t i = 16; i < 64; ++i) {
        const std::uint32_t a = w[i - 15];
        const std::uint32_t b = w[i - 2];
        w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t i = 0; i < 64; ++i) {
        const std::uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                  ((e & f) ^ (~e & g)) + kRound[i] + w[i];
        const std::uint32_t two =
            (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + one;
        d = c;
        c = b;
        b = a;
        a = one + two;
    }
    const std::array<std::uint32_t, 8> more = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < more.size(); ++i) {
        state_[i] += more[i];
    }
}

void Sha256::add(std::span<const std::byte> data) {
    bytes_ += data.size();
    while (!data.empty()) {
        if (used_ == 0 && data.size() >= block_.size()) {
            compress(data.data());
            data = data.subspan(block_.size());
            continue;
        }
        const std::size_t part = std::min(data.size(), block_.size() - used_);
        std::copy_n(data.begin(), part, block_.begin() + static_cast<std::ptrdiff_t>(used_));
        used_ += part;
        data = data.subspan(part);
        if (used_ == block_.size()) {
            compress(block_.data());
            used_ = 0;
        }
    }
}

Sha256Digest Sha256::finish() {
    const std::uint64_t bits = 8 * bytes_;
    std::array<std::byte, 72> end{};
    end[0] = std::byte{0x80};
    // Zeros up to the last 8 bytes of a block, which hold the length.
    const std::size_t zeros = (119 - used_) % 64;
    for (std::size_t i = 0; i < 8; ++i) {
        end[1 + zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
    }
    add(std::span(end).first(zeros + 9));
    Sha256Digest digest;
    for (std::size_t i = 0; i < state_.size(); ++i) {
        put_word(state_[i], digest.data() + 4 * i);
    }
    return digest;
}

HmacSha256::HmacSha256(std::span<const std::byte> key) {
    std::array<std::byte, 64> padded{};
    if (key.size() > padded.size()) {
        Sha256 hash;
        hash.add(key);
        const Sha256Digest digest = hash.finish();
        std::copy(digest.begin(), digest.end(), padded.begin());
    } else {
        std::copy(key.begin(), key.end(), padded.begin());
    }
    std::array<std::byte, 64> inner{};
    std::array<std::byte, 64> outer{};
    for (std::size_t i = 0; i < padded.size(); ++i) {
        inner[i] = padded[i] ^ std::byte{0x36};
        outer[i] = padded[i] ^ std::byte{0x5c};
    }
    inner_.add(inner);
    outer_.add(outer);
}

Sha256Digest HmacSha256::of(std::span<const std::byte> first,
                            std::span<const std::byte> second) const {
    Sha256 inner = inner_;
    inner.add(first);
    inner.add(second);
    const Sha256Digest digest = inner.finish();
    Sha256 outer = outer_;
    outer.add(digest);
    return outer.finish();
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
    std::byte difference{0};
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference |= a[i] ^ b[i];
    }
    return a.size() == b.size() && difference == std::byte{0};
}

}  // namespace deft
