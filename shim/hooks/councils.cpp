// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/councils.h"

#include <cstdint>
#include <vector>

#include "base/mutex.h"

namespace deft::councils {
namespace {

// Of an entry that was another communicator's, or is free, when it is gone().
struct TakenOut {
    const Communicator* entry = nullptr;
    std::uint32_t serial = 0;
    agreement::CouncilRef council;
};

struct Waiting {
    Mutex mutex;
    std::vector<TakenOut> all DEFT_GUARDED_BY(mutex);
};

Waiting& process() {
    static auto& waiting = *new Waiting;  // never destroyed: threads may outlive exit()
    return waiting;
}

}  // namespace

void leave(const Communicator& entry, std::atomic<agreement::Council*>& place) noexcept {
    agreement::CouncilRef council = take(place);
    if (!council) {
        return;
    }
    council->leave();
    Waiting& waiting = process();
    const MutexLock lock(waiting.mutex);
    try {
        waiting.all.reserve(waiting.all.size() + 1);
        waiting.all.push_back({&entry, entry.serial.load(), std::move(council)});
    } catch (...) {
        (void)council.release();  // no memory to remember it: it is never freed
    }
}

void leave(Communicator& entry) noexcept {
    leave(entry, entry.council);
    leave(entry, entry.origin);
    (void)take(entry.parent);
}

void release_unknown() noexcept {
    Waiting& waiting = process();
    const MutexLock lock(waiting.mutex);
    std::erase_if(waiting.all, [](const TakenOut& one) { return one.entry->gone(one.serial); });
}

}  // namespace deft::councils
