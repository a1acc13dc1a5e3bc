// SPDX-License-Identifier: Apache-2.0
// What a frame ends with: a checksum, or, where the job has a shared secret, a code that only who
// knows the secret can make.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/sha256.h"

namespace deft::agreement {

class Seal {
public:
    // Of this process. Has no secret before load().
    static const Seal& process();
    // Reads DEFT_SECRET_FILE's content, once; an empty path is no secret. False, and why, if there
    // is no such secret. Before any thread uses process().
    static bool load(const std::string& path, std::string& why);

    Seal() = default;
    explicit Seal(std::span<const std::byte> secret) : code_(secret) {}

    bool secret() const { return code_.has_value(); }
    // FNV-1a, 32 bit; or the first half of HMAC-SHA256.
    std::size_t bytes() const { return secret() ? 16 : 4; }
    // Of what comes before it. `out` has bytes().
    void make(std::span<const std::byte> header, std::span<const std::byte> payload,
              std::span<std::byte> out) const;
    bool good(std::span<const std::byte> header, std::span<const std::byte> payload,
              std::span<const std::byte> seal) const;

private:
    std::optional<HmacSha256> code_;
};

// The secret that the file holds, without blanks at its end. False, and why: it cannot be read,
// others may, or it is shorter than 16 bytes.
bool read_secret(const std::string& path, std::string& secret, std::string& why);

}  // namespace deft::agreement
