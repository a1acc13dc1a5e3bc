// SPDX-License-Identifier: Apache-2.0
// A message that lies in several places of memory, while it is sent or received.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace softdev::verbs {

constexpr std::size_t kMostSge = 16;

class Pieces {
public:
    void clear() { first_ = count_ = left_ = 0; }
    void add(void* at, std::size_t length) {
        if (length != 0) {
            parts_[count_++] = {at, length};
            left_ += length;
        }
    }
    std::size_t left() const { return left_; }
    /// Puts what comes next, at most `limit` bytes, into `out`; returns the number of entries.
    std::size_t next(iovec* out, std::size_t limit) const {
        std::size_t made = 0;
        for (std::size_t i = first_; i < count_ && limit > 0; ++i) {
            out[made] = parts_[i];
            out[made].iov_len = std::min(out[made].iov_len, limit);
            limit -= out[made++].iov_len;
        }
        return made;
    }
    void advance(std::size_t bytes) {
        left_ -= bytes;
        while (bytes > 0) {
            iovec& part = parts_[first_];
            const std::size_t now = std::min(bytes, part.iov_len);
            part.iov_base = static_cast<char*>(part.iov_base) + now;
            part.iov_len -= now;
            bytes -= now;
            if (part.iov_len == 0) {
                ++first_;
            }
        }
    }

    /// Whether any of what is left lies there.
    bool touches(const char* begin, std::size_t length) const {
        return std::any_of(parts_.begin() + static_cast<std::ptrdiff_t>(first_),
                           parts_.begin() + static_cast<std::ptrdiff_t>(count_),
                           [&](const iovec& part) {
                               const auto* const at = static_cast<const char*>(part.iov_base);
                               return at < begin + length && begin < at + part.iov_len;
                           });
    }

    /// One for a header in front.
    static constexpr std::size_t kMost = kMostSge + 1;

private:
    std::array<iovec, kMost> parts_{};
    std::size_t first_ = 0;
    std::size_t count_ = 0;
    std::size_t left_ = 0;
};

}  // namespace softdev::verbs
