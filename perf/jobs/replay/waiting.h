// SPDX-License-Identifier: Apache-2.0
// What deft's companion does inside PyTorch, for a job that has no PyTorch: says which sums are
// gradients, and takes those that are left to whoever waits for them (include/deft/deft.h).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "deft/deft.h"

namespace replay {

/// Of one rank. Where no deft is preloaded, or it wants no such layers, all does nothing, and no
/// sum is left.
class WaitingLayers {
public:
    explicit WaitingLayers(std::size_t buckets);
    /// The very next all-reduce sums this bucket.
    void mark(CUdeviceptr memory, std::uint64_t bytes, std::size_t bucket);
    /// Behind that call.
    void take(std::size_t bucket);
    /// The iteration's sums have all been called for.
    void note_iteration();
    /// The stream waits for the bucket's latest sum. False: it was not left, and the call's own
    /// stream has it. Throws where it will not come.
    bool wait(std::size_t bucket, CUstream stream);

private:
    const std::size_t buckets_;
    std::vector<deft_sum_t*> left_;
    bool wanted_ = false;
    std::uint64_t iterations_ = 0;
    decltype(&deft_mark_sum) mark_sum_ = nullptr;
    decltype(&deft_layers_wait) layers_wait_ = nullptr;
    decltype(&deft_take_sum) take_sum_ = nullptr;
    decltype(&deft_wait_sum) wait_sum_ = nullptr;
};

}  // namespace replay
