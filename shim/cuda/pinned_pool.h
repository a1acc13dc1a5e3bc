// SPDX-License-Identifier: Apache-2.0
// Pinned memory that outlives its users: to free it CUDA waits for the device, in the middle of
// what the job launches.
#pragma once

#include <cstddef>
#include <vector>

#include "base/mutex.h"
#include "shim/cuda/execution.h"

namespace deft::cuda {

// Small blocks, kept by context and size and never freed: as many as were in use at once. Threads:
// any; one that finds no block of its size waits in the driver.
class PinnedPool {
public:
    static PinnedPool& process();

    // `bytes` of pinned memory that every context may use, of the context that is current; what is
    // in it is left over. Returns CUDA's result.
    int take(const Execution& driver, Context context, std::size_t bytes, void*& memory) noexcept;

    // The same bytes, of which no copy is under way any more.
    void give_back(Context context, std::size_t bytes, void* memory) noexcept;

private:
    struct Block {
        Context context;
        std::size_t bytes;
        void* memory;
    };
    Mutex mutex_;
    std::vector<Block> free_ DEFT_GUARDED_BY(mutex_);

    void* reuse(Context context, std::size_t bytes) noexcept;
};

}  // namespace deft::cuda
