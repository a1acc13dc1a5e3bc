// SPDX-License-Identifier: Apache-2.0
#include "shim/cuda/pinned_pool.h"

#include <algorithm>

namespace deft::cuda {

PinnedPool& PinnedPool::process() {
    static auto& pool = *new PinnedPool;  // never destroyed: threads may outlive exit()
    return pool;
}

// The latest that fits: of a context that has been reset the oldest are the dead ones.
void* PinnedPool::reuse(Context context, std::size_t bytes) noexcept {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(free_.rbegin(), free_.rend(), [&](const Block& block) {
        return block.context == context && block.bytes == bytes;
    });
    if (found == free_.rend()) {
        return nullptr;
    }
    void* const memory = found->memory;
    free_.erase(std::next(found).base());
    return memory;
}

int PinnedPool::take(const Execution& driver, Context context, std::size_t bytes,
                     void*& memory) noexcept {
    // Without a way to ask, a block may have gone with its context.
    while (driver.MemHostGetFlags != nullptr) {
        memory = reuse(context, bytes);
        unsigned flags = 0;
        if (memory == nullptr) {
            break;
        }
        if (driver.MemHostGetFlags(&flags, memory) == kSuccess) {
            return kSuccess;
        }
    }
    return driver.MemHostAlloc(&memory, bytes, kHostAllocPortable);
}

void PinnedPool::give_back(Context context, std::size_t bytes, void* memory) noexcept {
    try {
        const MutexLock lock(mutex_);
        free_.push_back({context, bytes, memory});
    } catch (...) {
        // No memory for the list: this block stays where it is.
    }
}

}  // namespace deft::cuda
