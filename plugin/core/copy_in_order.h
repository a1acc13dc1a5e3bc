// SPDX-License-Identifier: Apache-2.0
// Copies into buffers that NCCL's GPUs may be reading already.
#pragma once

#include <cstddef>

namespace deft::net {

// NCCL's GPUs poll receive buffers of the protocols LL and LL128 for flags, and take a flag for the
// word that what stands before it has come: LL has one in each 8 bytes, LL128 one in the last 8 of
// each 128 (src/device/prims_ll128.h). memcpy() promises no order; glibc's stores the first 64
// bytes last. Here a line of 128 bytes is stored before its last word, and words of 8 bytes are
// stored whole. `to` is aligned to 128 bytes, as NCCL's buffers are; else a flag has its order only
// on x86.
void copy_in_order(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

// The ways it has: for tests. The last is there for every processor, the others may be missing.
enum class OrderedCopy { Avx, Sse, Fences };
bool copy_in_order(OrderedCopy way, std::byte* to, const std::byte* from,
                   std::size_t bytes) noexcept;

}  // namespace deft::net
