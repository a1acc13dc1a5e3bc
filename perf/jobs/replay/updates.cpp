// SPDX-License-Identifier: Apache-2.0
#include "perf/jobs/replay/updates.h"

#include <algorithm>
#include <stdexcept>

namespace replay {

Updates::Updates(int iterations, std::size_t buckets)
    : buckets_(buckets), numbers_(static_cast<std::size_t>(iterations) * buckets) {
    void* memory = nullptr;
    if (cuMemAllocHost(&memory, std::max(numbers_, std::size_t{1}) * sizeof(float)) !=
        CUDA_SUCCESS) {
        throw std::runtime_error("cuMemAllocHost: no memory for what the updates get");
    }
    seen_ = static_cast<float*>(memory);
    std::fill_n(seen_, numbers_, 1.0F);
}

Updates::~Updates() {
    cuMemFreeHost(seen_);
}

void Updates::note(int iteration, const std::vector<CUdeviceptr>& gradients, CUstream stream) {
    const std::size_t first = static_cast<std::size_t>(iteration) * buckets_;
    for (std::size_t i = 0; i < gradients.size() && first + i < numbers_; ++i) {
        if (cuMemcpyDtoHAsync(seen_ + first + i, gradients[i], sizeof(float), stream) !=
            CUDA_SUCCESS) {
            throw std::runtime_error("cuMemcpyDtoHAsync: what an update gets cannot be seen");
        }
    }
}

std::vector<std::size_t> Updates::zeros() const {
    std::vector<std::size_t> zeros;
    for (std::size_t first = 0; first < numbers_; first += buckets_) {
        zeros.push_back(
            static_cast<std::size_t>(std::count(seen_ + first, seen_ + first + buckets_, 0.0F)));
    }
    return zeros;
}

}  // namespace replay
