// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace deft::net {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of `size` bytes, continued from `before` (0 to
// begin): crc32c(crc32c(0, a), b) is that of a followed by b. With the processor's instruction for
// it where there is one. Any thread.
std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t size);

// The same without that instruction; for tests.
std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t size);

}  // namespace deft::net
