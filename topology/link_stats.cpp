// SPDX-License-Identifier: Apache-2.0
#include "topology/link_stats.h"

#include <algorithm>
#include <cstring>

namespace deft {

LinkStats& LinkStats::process() {
    // Constant-initialised and trivially destroyed: safe before main and after exit.
    static constinit LinkStats stats;
    return stats;
}

void LinkCounters::sample(std::int64_t now) noexcept {
    constexpr std::int64_t stretch = 100'000'000;
    constexpr std::int64_t forget = 1024;  // a peak fades by so little in each stretch
    std::int64_t start = stretch_start_.load(std::memory_order_relaxed);
    if (now - start < stretch ||
        !stretch_start_.compare_exchange_strong(start, now, std::memory_order_relaxed)) {
        return;
    }
    const std::uint64_t sent = bytes_sent.load(std::memory_order_relaxed);
    const std::uint64_t before = stretch_bytes_.exchange(sent, std::memory_order_relaxed);
    // A long stretch is one in which nobody looked: it says nothing about the link.
    if (start == 0 || now - start > 4 * stretch || sent <= before) {
        return;
    }
    const auto rate = static_cast<std::int64_t>(static_cast<double>(sent - before) * 8e3 /
                                                static_cast<double>(now - start));
    const std::int64_t peak = peak_mbps.load(std::memory_order_relaxed);
    peak_mbps.store(std::max(rate, peak - peak / forget), std::memory_order_relaxed);
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
