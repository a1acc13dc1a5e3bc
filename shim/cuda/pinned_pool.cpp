// SPDX-License-Identifier: Apache-2.0
#include "shim/cuda/pinned_pool.h"

#include <algorithm>

namespace deft::cuda {
namespace {

// 0: CUDA does not tell, or the memory is gone.
std::uint64_t id_of(const Execution& driver, void* memory) {
    std::uint64_t id = 0;
    return driver.PointerGetAttribute != nullptr &&
                   driver.PointerGetAttribute(&id, kAttributeBufferId,
                                              reinterpret_cast<DevicePointer>(memory)) == kSuccess
               ? id
               : 0;
}

}  // namespace

PinnedPool& PinnedPool::process() {
    static auto& pool = *new PinnedPool;  // never destroyed: threads may outlive exit()
    return pool;
}

bool PinnedPool::reuse(const Execution& driver, Block& block) noexcept {
    const MutexLock lock(mutex_);
    for (;;) {
        const auto found = std::find_if(free_.begin(), free_.end(), [&](const Block& each) {
            return each.context == block.context && each.bytes == block.bytes;
        });
        if (found == free_.end()) {
            return false;
        }
        block = *found;
        free_.erase(found);
        if (id_of(driver, block.memory) == block.id) {
            taken_.push_back(block);  // has had room for it
            return true;
        }
    }
}

int PinnedPool::take(const Execution& driver, Context context, std::size_t bytes,
                     void*& memory) noexcept {
    Block block{context, bytes, nullptr, 0};
    if (reuse(driver, block)) {
        memory = block.memory;
        return kSuccess;
    }
    const int result = driver.MemHostAlloc(&memory, bytes, kHostAllocPortable);
    if (result == kSuccess) {
        block.memory = memory;
        block.id = id_of(driver, memory);
        try {
            const MutexLock lock(mutex_);
            taken_.reserve(taken_.size() + free_.size() + 1);
            free_.reserve(taken_.size() + free_.size() + 1);
            taken_.push_back(block);
        } catch (...) {
            // No memory for the lists: this block is not kept when it comes back.
        }
    }
    return result;
}

void PinnedPool::give_back(void* memory) noexcept {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(taken_.begin(), taken_.end(),
                                    [&](const Block& each) { return each.memory == memory; });
    if (found != taken_.end()) {
        if (found->id != 0) {
            free_.push_back(*found);  // take() has made room for it
        }
        taken_.erase(found);
    }
}

}  // namespace deft::cuda
