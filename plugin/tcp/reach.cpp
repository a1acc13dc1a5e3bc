// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/reach.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/mutex.h"

namespace deft::net {
namespace {

struct Known {
    Mutex mutex;
    std::vector<std::pair<Address, Address>> dead DEFT_GUARDED_BY(mutex);  // oldest first
    std::atomic<std::size_t> count{0};  // most hosts have none: no lock then
};

Known& known() {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static Known& object = *new Known;
    return object;
}

auto find(const Address& own, const Address& peer) DEFT_REQUIRES(known().mutex) {
    return std::find_if(known().dead.begin(), known().dead.end(),
                        [&](const auto& pair) { return pair.first == own && pair.second == peer; });
}

}  // namespace

bool Reach::known_dead(const Address& own, const Address& peer) {
    if (known().count.load(std::memory_order_relaxed) == 0) {
        return false;
    }
    const MutexLock lock(known().mutex);
    return find(own, peer) != known().dead.end();
}

void Reach::dead(const Address& own, const Address& peer) {
    const MutexLock lock(known().mutex);
    if (find(own, peer) != known().dead.end()) {
        return;
    }
    if (known().dead.size() == kMaxPairs) {
        known().dead.erase(known().dead.begin());
    }
    known().dead.emplace_back(own, peer);
    known().count.store(known().dead.size(), std::memory_order_relaxed);
}

void Reach::alive(const Address& own, const Address& peer) {
    if (known().count.load(std::memory_order_relaxed) == 0) {
        return;
    }
    const MutexLock lock(known().mutex);
    if (const auto entry = find(own, peer); entry != known().dead.end()) {
        known().dead.erase(entry);
        known().count.store(known().dead.size(), std::memory_order_relaxed);
    }
}

void Reach::forget_all() {
    const MutexLock lock(known().mutex);
    known().dead.clear();
    known().count.store(0, std::memory_order_relaxed);
}

}  // namespace deft::net
