// SPDX-License-Identifier: Apache-2.0
#include "perf/jobs/replay/waiting.h"

#include <dlfcn.h>

#include <stdexcept>

namespace replay {
namespace {

constexpr std::uint32_t kModule = 1;
// As many iterations as a proof takes in PyTorch.
constexpr std::uint64_t kProof = 18;

template <class Function>
void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace

WaitingLayers::WaitingLayers(std::size_t buckets) : buckets_(buckets), left_(buckets, nullptr) {
    decltype(&deft_companion_begin) begin = nullptr;
    find(begin, "deft_companion_begin");
    find(mark_sum_, "deft_mark_sum");
    find(layers_wait_, "deft_layers_wait");
    find(take_sum_, "deft_take_sum");
    find(wait_sum_, "deft_wait_sum");
    wanted_ = begin != nullptr && mark_sum_ != nullptr && layers_wait_ != nullptr &&
              take_sum_ != nullptr && wait_sum_ != nullptr &&
              begin(DEFT_COMPANION_INTERFACE, "replay") == DEFT_COMPANION_LAYERS;
}

void WaitingLayers::mark(CUdeviceptr memory, std::uint64_t bytes, std::size_t bucket) {
    if (wanted_) {
        mark_sum_(reinterpret_cast<const void*>(memory), bytes, DEFT_SUM_BUCKET, kModule,
                  static_cast<std::uint32_t>(bucket), bucket + 1 == buckets_ ? 1 : 0);
    }
}

void WaitingLayers::take(std::size_t bucket) {
    if (wanted_) {
        left_[bucket] = take_sum_();
    }
}

void WaitingLayers::note_iteration() {
    if (wanted_ && ++iterations_ == kProof) {
        layers_wait_(kModule);
    }
}

bool WaitingLayers::wait(std::size_t bucket, CUstream stream) {
    deft_sum_t* const sum = left_[bucket];
    left_[bucket] = nullptr;
    if (sum != nullptr && wait_sum_(sum, stream, 0) != 0) {
        throw std::runtime_error("the sum of a bucket will not come");
    }
    return sum != nullptr;
}

}  // namespace replay
