// SPDX-License-Identifier: Apache-2.0
// What the updates of a replayed job get: nothing in some iterations, where deft merges others.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <vector>

namespace replay {

/// Of one rank. Looks at one number of each gradient, which is never 0 unless deft makes it so.
class Updates {
public:
    Updates(int iterations, std::size_t buckets);
    ~Updates();
    Updates(const Updates&) = delete;
    Updates& operator=(const Updates&) = delete;
    /// The stream has the iteration's sums. One that is beyond the number above is left out.
    void note(int iteration, const std::vector<CUdeviceptr>& gradients, CUstream stream);
    /// For each iteration the number of gradients that were zeros. Needs the stream to be done.
    std::vector<std::size_t> zeros() const;

private:
    const std::size_t buckets_;
    const std::size_t numbers_;
    float* seen_ = nullptr;  // pinned, of each iteration's buckets in turn
};

}  // namespace replay
