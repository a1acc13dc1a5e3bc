// SPDX-License-Identifier: Apache-2.0
#include "base/link_stats.h"

#include <cstring>

namespace deft {

void LinkCounters::note_stall(std::int64_t nanoseconds) noexcept {
    std::size_t i = 0;
    while (i < kStallBounds.size() && static_cast<double>(nanoseconds) > kStallBounds[i] * 1e9) {
        ++i;
    }
    stalls[i].fetch_add(1, std::memory_order_relaxed);
    stall_ns.fetch_add(static_cast<std::uint64_t>(nanoseconds), std::memory_order_relaxed);
}

LinkStats& LinkStats::process() {
    // Constant-initialised and trivially destroyed: safe before main and after exit.
    static constinit LinkStats stats;
    return stats;
}

const LinkCounters* LinkStats::find(const char* name, const char* kind) const noexcept {
    for (std::size_t i = 0, n = size(); i < n; ++i) {
        // As long as a slot's name can be: a longer name must find the slot it was cut down to.
        if (std::strncmp(links_[i].name, name, sizeof(links_[i].name) - 1) == 0 &&
            std::strncmp(links_[i].kind, kind, sizeof(links_[i].kind) - 1) == 0) {
            return &links_[i];
        }
    }
    return nullptr;
}

LinkCounters& LinkStats::link(const char* name, const char* kind) noexcept {
    if (const LinkCounters* known = find(name, kind)) {
        return const_cast<LinkCounters&>(*known);
    }
    while (adding_.test_and_set(std::memory_order_acquire)) {
    }
    auto* slot = const_cast<LinkCounters*>(find(name, kind));
    if (slot == nullptr) {
        const std::size_t n = size();
        slot = &links_[n < kMaxLinks ? n : kMaxLinks];
        const bool overflow = n >= kMaxLinks;
        std::strncpy(slot->name, overflow ? "other" : name, sizeof(slot->name) - 1);
        std::strncpy(slot->kind, overflow ? "" : kind, sizeof(slot->kind) - 1);
        if (!overflow) {
            count_.store(n + 1, std::memory_order_release);
        }
    }
    adding_.clear(std::memory_order_release);
    return *slot;
}

}  // namespace deft
