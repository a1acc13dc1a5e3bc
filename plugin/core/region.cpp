// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/region.h"

#include <algorithm>
#include <utility>

namespace deft::net {

std::shared_ptr<const Registration> Domain::registration(const Memory& memory,
                                                         std::string& problem) {
    const MutexLock lock(mutex_);
    std::erase_if(entries_, [](const Entry& entry) { return entry.registration.expired(); });
    for (const Entry& entry : entries_) {
        if (entry.data == memory.data && entry.size == memory.size && entry.kind == memory.kind) {
            if (auto held = entry.registration.lock(); held != nullptr) {
                return held;
            }
        }
    }
    std::shared_ptr<const Registration> made = enter(memory, problem);
    if (made != nullptr) {
        entries_.push_back({memory.data, memory.size, memory.kind, made});
    }
    return made;
}

std::size_t Domain::held() {
    const MutexLock lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(entries_.begin(), entries_.end(),
                      [](const Entry& entry) { return !entry.registration.expired(); }));
}

Region::Region(const Memory& memory, std::span<const std::shared_ptr<Domain>> domains,
               std::string& problem)
    : memory_(memory) {
    memory_.dmabuf = -1;  // the caller's
    for (const auto& domain : domains) {
        if (count_ == kMaxDomains) {
            return;
        }
        std::string why;
        auto registration = domain->registration(memory, why);
        if (registration == nullptr) {
            problem = problem.empty() ? why : problem;
            continue;
        }
        entries_[count_++] = {domain.get(), std::move(registration)};
    }
}

}  // namespace deft::net
