// SPDX-License-Identifier: Apache-2.0
// Gradient norms and non-finite values, measured on the lanes in stream order and brought to the
// host without anybody waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shim/executor/correlation.h"
#include "shim/executor/shadow.h"
#include "shim/executor/statistics.h"

namespace deft::executor {

// The hook's thread begins and ends iterations and measures; one background thread takes the
// results. What lanes carry in one iteration is one result. Between two complete measurements
// every transfer has only a window looked at, which moves on, so that the cost stays small.
class Sampler {
public:
    static constexpr std::uint32_t kRing = 8;             // iterations in flight
    static constexpr std::uint64_t kWindow = 128 * 1024;  // elements

    // What Shadow must have in addition, beside what the correlation needs.
    static std::uint64_t device_bytes(std::uint32_t lanes) { return kRing * lanes * sizeof(Block); }
    static std::size_t host_bytes(std::uint32_t lanes) { return device_bytes(lanes); }
    static std::uint32_t events(std::uint32_t lanes) { return kRing * lanes; }

    static std::unique_ptr<Sampler> create(const cuda::Execution& driver, Shadow& shadow,
                                           std::uint32_t lanes, std::uint32_t complete_every,
                                           Correlation correlation, std::string& problem);
    ~Sampler();
    Sampler(const Sampler&) = delete;
    Sampler& operator=(const Sampler&) = delete;

    // An iteration of the job begins. If the background thread is behind, it is not measured.
    void begin(std::uint64_t iteration) noexcept;
    // Around one transfer on a lane, the script's `launch`: `count` elements that hold `merged`
    // gradients each. CUDA's result.
    int before(std::uint32_t lane, cuda::Stream stream, Element element, cuda::DevicePointer from,
               std::uint64_t count, std::uint64_t bytes, std::uint32_t merged) noexcept;
    int after(std::size_t launch, std::uint32_t lane, cuda::Stream stream, Element element,
              cuda::DevicePointer to, std::uint64_t count, std::uint64_t bytes) noexcept;
    // The iteration's last call has been made.
    int end(const std::vector<cuda::Stream>& streams) noexcept;

    bool take(Statistics& statistics) noexcept;

private:
    struct Block {  // in device memory, filled by one lane; copied to the host
        double local;
        std::uint64_t local_bad;
        double reduced;
        std::uint64_t reduced_bad;
        double correlation[Correlation::kSums];
    };
    enum class State : std::uint8_t { Free, Issued };
    struct Entry {
        std::atomic<State> state{State::Free};
        std::uint64_t lanes = 0;
        Statistics statistics;
        double carried_bytes = 0;
        double merged_bytes = 0;
    };

    Sampler(const cuda::Execution& driver, Shadow& shadow, std::uint32_t lanes,
            std::uint32_t complete_every, Correlation correlation)
        : driver_(driver),
          shadow_(shadow),
          lanes_(lanes),
          complete_every_(complete_every),
          correlation_(std::move(correlation)) {}
    cuda::DevicePointer device_block(std::uint32_t lane) const;
    bool idle() const noexcept;

    const cuda::Execution& driver_;
    Shadow& shadow_;
    const std::uint32_t lanes_;
    const std::uint32_t complete_every_;
    Correlation correlation_;
    Block* host_ = nullptr;  // pinned, kRing * lanes
    Entry ring_[kRing];
    std::uint64_t written_ = 0;  // entries issued; hook's thread
    std::uint64_t taken_ = 0;    // background thread
    Entry* current_ = nullptr;   // hook's thread
    std::uint64_t iteration_ = 0;
    // Merged sums are not sent in every iteration: the first one that sends any is complete.
    std::uint64_t next_complete_ = 0;
    bool complete_ = false;
    bool carries_ = false;
};

}  // namespace deft::executor
