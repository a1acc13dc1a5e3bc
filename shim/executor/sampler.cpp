// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "shim/cuda/pinned_pool.h"

namespace deft::executor {
namespace {

// Of the angle between a and b; kNoCosine where one is nothing, or not finite.
double cosine(double aa, double ab, double bb) {
    const double value = ab / std::sqrt(aa) / std::sqrt(bb);
    return aa > 0 && bb > 0 && std::isfinite(value) ? std::clamp(value, -1.0, 1.0) : kNoCosine;
}

}  // namespace

std::unique_ptr<Sampler> Sampler::create(const cuda::Execution& driver, Shadow& shadow,
                                         std::uint32_t lanes, std::uint32_t complete_every,
                                         Correlation correlation, std::string& problem) {
    correlation.memory(shadow.extra_memory() + device_bytes(lanes));
    std::unique_ptr<Sampler> sampler(new Sampler(
        driver, shadow, lanes, std::max<std::uint32_t>(complete_every, 1), std::move(correlation)));
    const cuda::Current current(*driver.driver, shadow.context());
    void* memory = nullptr;
    const int result = current ? cuda::PinnedPool::process().take(driver, shadow.context(),
                                                                  host_bytes(lanes), memory)
                               : -1;
    if (result != cuda::kSuccess) {
        problem = "no pinned memory (CUDA error " + std::to_string(result) + ")";
        return nullptr;
    }
    sampler->host_ = static_cast<Block*>(memory);
    return sampler;
}

Sampler::~Sampler() {
    const cuda::Current current(*driver_.driver, shadow_.context());
    // A copy in flight would write into the memory of another: then these few bytes stay.
    if (host_ != nullptr && current && idle()) {
        cuda::PinnedPool::process().give_back(host_);
    }
}

bool Sampler::idle() const noexcept {
    for (std::uint32_t e = 0; e < events(lanes_); ++e) {
        if (driver_.driver->EventQuery(shadow_.extra_event(e)) != cuda::kSuccess) {
            return false;
        }
    }
    return true;
}

cuda::DevicePointer Sampler::device_block(std::uint32_t lane) const {
    return shadow_.extra_memory() + (written_ % kRing * lanes_ + lane) * sizeof(Block);
}

void Sampler::begin(std::uint64_t iteration) noexcept {
    Entry& entry = ring_[written_ % kRing];
    current_ = nullptr;
    // Whether or not this rank measures it: all ranks must take the same iterations for complete.
    iteration_ = iteration;
    complete_ = iteration >= next_complete_;
    carries_ = false;
    if (entry.state.load(std::memory_order_acquire) != State::Free) {
        correlation_.restart();
        return;
    }
    entry.lanes = 0;
    entry.merged_bytes = 0;
    entry.carried_bytes = 0;
    entry.statistics = {};
    entry.statistics.iteration = iteration;
    entry.statistics.complete = complete_;
    current_ = &entry;
}

int Sampler::before(std::uint32_t lane, cuda::Stream stream, Element element,
                    cuda::DevicePointer from, std::uint64_t count, std::uint64_t bytes,
                    std::uint32_t merged) noexcept {
    carries_ = true;
    if (current_ == nullptr) {
        return cuda::kSuccess;
    }
    current_->merged_bytes += static_cast<double>(bytes) * merged;
    current_->carried_bytes += static_cast<double>(bytes);
    const cuda::DevicePointer block = device_block(lane);
    int result = cuda::kSuccess;
    if ((current_->lanes >> lane & 1) == 0) {
        current_->lanes |= std::uint64_t{1} << lane;
        result = driver_.MemsetD8Async(block, 0, sizeof(Block), stream);
    }
    if (complete_ && result == cuda::kSuccess) {
        result = shadow_.kernels().square(element, from, count, block + offsetof(Block, local),
                                          block + offsetof(Block, local_bad), stream);
    }
    return result;
}

int Sampler::after(std::size_t launch, std::uint32_t lane, cuda::Stream stream, Element element,
                   cuda::DevicePointer to, std::uint64_t count, std::uint64_t bytes) noexcept {
    if (current_ == nullptr || count == 0) {
        return cuda::kSuccess;
    }
    const std::uint64_t size = bytes / count;
    std::uint64_t begin = 0;
    std::uint64_t length = count;
    if (!complete_ && count > kWindow) {
        const std::uint64_t windows = (count + kWindow - 1) / kWindow;
        begin = iteration_ % windows * kWindow;
        length = std::min(kWindow, count - begin);
    }
    current_->statistics.bytes += length * size;
    const cuda::DevicePointer block = device_block(lane);
    const int result = shadow_.kernels().square(element, to + begin * size, length,
                                                block + offsetof(Block, reduced),
                                                block + offsetof(Block, reduced_bad), stream);
    return result != cuda::kSuccess ? result
                                    : correlation_.after(shadow_.kernels(), launch, stream, to,
                                                         block + offsetof(Block, correlation));
}

int Sampler::end(const std::vector<cuda::Stream>& streams) noexcept {
    if (complete_ && carries_) {
        next_complete_ = iteration_ + complete_every_;
    }
    if (current_ == nullptr || current_->lanes == 0) {
        current_ = nullptr;
        return cuda::kSuccess;
    }
    const auto slot = static_cast<std::uint32_t>(written_ % kRing);
    int result = cuda::kSuccess;
    for (std::uint32_t l = 0; l < lanes_ && result == cuda::kSuccess; ++l) {
        if ((current_->lanes >> l & 1) == 0) {
            continue;
        }
        result = driver_.MemcpyDtoHAsync(host_ + slot * lanes_ + l, device_block(l), sizeof(Block),
                                         streams[l]);
        if (result == cuda::kSuccess) {
            result =
                driver_.driver->EventRecord(shadow_.extra_event(slot * lanes_ + l), streams[l]);
        }
    }
    if (result == cuda::kSuccess) {
        ++written_;
        current_->state.store(State::Issued, std::memory_order_release);
    }
    current_ = nullptr;
    return result;
}

bool Sampler::take(Statistics& statistics) noexcept {
    const auto slot = static_cast<std::uint32_t>(taken_ % kRing);
    Entry& entry = ring_[slot];
    if (entry.state.load(std::memory_order_acquire) != State::Issued) {
        return false;
    }
    const cuda::Current current(*driver_.driver, shadow_.context());
    if (!current) {
        return false;
    }
    const cuda::Relaxed relaxed(*driver_.driver);
    bool done = true;
    for (std::uint32_t l = 0; l < lanes_ && done; ++l) {
        done = (entry.lanes >> l & 1) == 0 ||
               driver_.driver->EventQuery(shadow_.extra_event(slot * lanes_ + l)) == cuda::kSuccess;
    }
    if (!done) {
        return false;
    }
    statistics = entry.statistics;
    double sums[Correlation::kSums] = {};
    for (std::uint32_t l = 0; l < lanes_; ++l) {
        if ((entry.lanes >> l & 1) != 0) {
            const Block& block = host_[slot * lanes_ + l];
            for (std::size_t i = 0; i < Correlation::kSums; ++i) {
                sums[i] += block.correlation[i];
            }
            statistics.local_square += block.local;
            statistics.reduced_square += block.reduced;
            statistics.not_finite += block.reduced_bad;
        }
    }
    statistics.cosine_before = cosine(sums[0], sums[1], sums[2]);
    statistics.cosine_earlier = cosine(sums[0], sums[3], sums[4]);
    statistics.merged = entry.carried_bytes > 0 ? entry.merged_bytes / entry.carried_bytes : 1;
    entry.state.store(State::Free, std::memory_order_release);
    ++taken_;
    return true;
}

}  // namespace deft::executor
