// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/reach.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/mutex.h"

namespace deft::net {
namespace {

class Pairs {
public:
    bool has(const Address& own, const Address& peer) {
        if (count_.load(std::memory_order_relaxed) == 0) {
            return false;
        }
        const MutexLock lock(mutex_);
        return find(own, peer) != pairs_.end();
    }
    void add(const Address& own, const Address& peer) {
        const MutexLock lock(mutex_);
        if (find(own, peer) != pairs_.end()) {
            return;
        }
        if (pairs_.size() == Reach::kMaxPairs) {
            pairs_.erase(pairs_.begin());
        }
        pairs_.emplace_back(own, peer);
        count_.store(pairs_.size(), std::memory_order_relaxed);
    }
    void remove(const Address& own, const Address& peer) {
        if (count_.load(std::memory_order_relaxed) == 0) {
            return;
        }
        const MutexLock lock(mutex_);
        if (const auto entry = find(own, peer); entry != pairs_.end()) {
            pairs_.erase(entry);
            count_.store(pairs_.size(), std::memory_order_relaxed);
        }
    }
    void clear() {
        const MutexLock lock(mutex_);
        pairs_.clear();
        count_.store(0, std::memory_order_relaxed);
    }

private:
    using Entries = std::vector<std::pair<Address, Address>>;
    Entries::iterator find(const Address& own, const Address& peer) DEFT_REQUIRES(mutex_) {
        return std::find_if(pairs_.begin(), pairs_.end(), [&](const auto& pair) {
            return pair.first == own && pair.second == peer;
        });
    }

    Mutex mutex_;
    Entries pairs_ DEFT_GUARDED_BY(mutex_);  // oldest first
    std::atomic<std::size_t> count_{0};      // most hosts have none: no lock then
};

struct Known {
    Pairs dead;
    Pairs astray;
};

Known& known() {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static Known& object = *new Known;
    return object;
}

}  // namespace

bool Reach::known_dead(const Address& own, const Address& peer) {
    return known().dead.has(own, peer);
}

void Reach::dead(const Address& own, const Address& peer) {
    known().dead.add(own, peer);
}

void Reach::alive(const Address& own, const Address& peer) {
    known().dead.remove(own, peer);
}

bool Reach::astray(const Address& own, const Address& peer) {
    return known().astray.has(own, peer);
}

void Reach::went_astray(const Address& own, const Address& peer) {
    known().astray.add(own, peer);
}

void Reach::forget_all() {
    known().dead.clear();
    known().astray.clear();
}

}  // namespace deft::net
