// SPDX-License-Identifier: Apache-2.0
// Device memory and events of one executor, all made before the first call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shim/cuda/execution.h"
#include "shim/executor/kernels.h"
#include "shim/executor/script.h"

namespace deft::executor {

enum class SlotState : std::uint8_t {
    Empty,      // nothing of worth
    Filling,    // holds gradients
    Sent,       // its transfers are launched, in part or all
    Delivered,  // holds the reduced sum, kept for prediction
};

class Shadow {
public:
    static std::unique_ptr<Shadow> create(const cuda::Execution& driver, int device,
                                          const Script& script, std::uint64_t most_bytes,
                                          std::uint64_t extra_bytes, std::uint32_t extra_events,
                                          std::string& problem);
    // Gives everything back behind what is in flight, without waiting for it.
    ~Shadow();
    Shadow(const Shadow&) = delete;
    Shadow& operator=(const Shadow&) = delete;

    struct Contents {
        SlotState state = SlotState::Empty;
        std::uint32_t count = 0;    // gradients in it
        std::uint64_t carried = 0;  // bit l: lane l has been given some of it
    };
    Contents& slot(std::uint32_t s) { return contents_[s]; }
    const Contents& slot(std::uint32_t s) const { return contents_[s]; }
    std::uint32_t slots() const { return static_cast<std::uint32_t>(contents_.size()); }
    cuda::DevicePointer address(std::uint32_t s) const { return memory_ + offsets_[s]; }
    // Script::staging of a lane.
    cuda::DevicePointer staging(std::uint32_t lane) const { return memory_ + staging_[lane]; }

    // Happens when the pieces of what slot s holds that the lane has been given have arrived.
    cuda::Event arrived(std::uint32_t s, std::uint32_t lane) const {
        return events_[arrived_ + s * lanes_ + lane];
    }
    // The job's stream has come to this point in its latest call on the bucket: gradients taken
    // in; everything done.
    cuda::Event ready(std::uint32_t bucket) const { return events_[ready_ + bucket]; }
    cuda::Event done(std::uint32_t bucket) const { return events_[done_ + bucket]; }
    // A lane has finished what this very call gave it.
    cuda::Event passed(std::uint32_t lane) const { return events_[passed_ + lane]; }

    // For measurements: memory behind the slots, and events that are waited for at the end.
    cuda::DevicePointer extra_memory() const { return memory_ + extra_at_; }
    cuda::Event extra_event(std::uint32_t e) const { return events_[extra_ + e]; }

    const Kernels& kernels() const { return kernels_; }
    cuda::Context context() const { return context_; }
    cuda::Stream stream() const { return stream_; }

private:
    Shadow(const cuda::Execution& driver, const Script& script, std::uint32_t extra_events);
    bool make_events(std::string& problem);
    bool make_memory(std::uint64_t bytes, std::string& problem);
    bool free_memory(bool ordered) noexcept;

    const cuda::Execution& driver_;
    cuda::Context context_ = nullptr;
    cuda::Stream stream_ = nullptr;  // memory is made and given back in its order
    cuda::DevicePointer memory_ = 0;
    bool pooled_ = false;
    std::uint32_t lanes_ = 0;
    std::uint32_t arrived_ = 0, ready_ = 0, done_ = 0, passed_ = 0, extra_ = 0;
    std::uint64_t extra_at_ = 0;
    std::vector<cuda::Event> events_;
    std::vector<std::uint64_t> offsets_;
    std::vector<std::uint64_t> staging_;  // offsets too
    std::vector<Contents> contents_;
    Kernels kernels_;
};

}  // namespace deft::executor
