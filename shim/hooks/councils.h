// SPDX-License-Identifier: Apache-2.0
// The references to councils that the entries of communicators have. A hook that has pinned an
// entry may read one and use the council until it lets the entry go, though another thread ends the
// communicator meanwhile: what is taken out of an entry is released when no hook knows the entry.
#pragma once

#include <atomic>

#include "shim/agreement/council.h"
#include "shim/nccl/registry.h"

namespace deft::councils {

// Into a place of an entry, which is empty.
inline void put(std::atomic<agreement::Council*>& place, agreement::CouncilRef council) noexcept {
    place.store(council.release());
}

// For longer than the entry stays pinned.
inline agreement::CouncilRef at(const std::atomic<agreement::Council*>& place) noexcept {
    return agreement::CouncilRef(place.load(std::memory_order_acquire));
}

// Out of a place that every hook empties before it uses what is there.
inline agreement::CouncilRef take(std::atomic<agreement::Council*>& place) noexcept {
    return agreement::CouncilRef::adopt(place.exchange(nullptr));
}

// The rank leaves what is in the place, which others may have read. The caller has pinned the
// entry.
void leave(const Communicator& entry, std::atomic<agreement::Council*>& place) noexcept;
// All of the entry's.
void leave(Communicator& entry) noexcept;

// Releases what has been taken out and is known to no hook any more. Any thread.
void release_unknown() noexcept;

}  // namespace deft::councils
