// SPDX-License-Identifier: Apache-2.0
// Pinned memory that outlives its users: to free it CUDA waits for the device, in the middle of
// what the job launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "shim/cuda/execution.h"

namespace deft::cuda {

// Small blocks, kept by context and size and never freed: as many as were in use at once. Threads:
// any; one that finds no block of its size waits in the driver.
class PinnedPool {
public:
    static PinnedPool& process();

    // `bytes` of pinned memory that every context may use, of `context`, which is current; what is
    // in it is left over. Returns CUDA's result.
    int take(const Execution& driver, Context context, std::size_t bytes, void*& memory) noexcept;

    // That memory, of which no copy is under way any more.
    void give_back(void* memory) noexcept;

private:
    struct Block {
        Context context;
        std::size_t bytes;
        void* memory;
        // CUDA's, never the same twice: a block may go with its context when that is reset, and the
        // job be given its address.
        std::uint64_t id;
    };
    Mutex mutex_;
    std::vector<Block> free_ DEFT_GUARDED_BY(mutex_);
    std::vector<Block> taken_ DEFT_GUARDED_BY(mutex_);

    bool reuse(const Execution& driver, Block& block) noexcept;
};

}  // namespace deft::cuda
