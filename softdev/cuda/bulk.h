// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace softdev {

// Moving whole gradients. A GPU does that at the speed of its memory and leaves the host's caches
// alone; here the cores do that also compute and carry the bytes. So large blocks are written past
// the caches, which spares memory the reading of what is overwritten.

// From so many bytes on: less stays in a second-level cache, where the next reader finds it.
inline constexpr std::size_t kBulk = std::size_t{512} << 10;

// As memmove.
void bulk_copy(void* to, const void* from, std::size_t bytes);

// Past the caches whatever the size, for who writes much piece by piece. `from` and `to` do not
// overlap. What was written is seen by whom bulk_done() happens before, and by no other.
void bulk_piece(void* to, const void* from, std::size_t bytes);
void bulk_done();

}  // namespace softdev
