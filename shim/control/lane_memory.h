// SPDX-License-Identifier: Apache-2.0
// What the lanes of one communicator take of the device's memory, which the job may need itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shim/cuda/execution.h"

namespace deft::director {

// Background thread. All sizes are bytes of the device's memory; where the driver does not say how
// much is free, nothing is refused and nothing is given back.
class LaneMemory {
public:
    explicit LaneMemory(int device) noexcept : device_(device) {}

    // Lanes are about to be made.
    void begin() noexcept;
    // Before a lane is made: why the job can't spare what it may take; empty: it can. `untried`
    // are open, but have yet to connect. The answer is this rank's alone.
    std::string obstacle(std::size_t untried = 0);
    // So many lanes have been made and tried. Says what they took: the free memory before them less
    // that after them, so what the job took meanwhile counts too.
    void note_made(std::size_t lanes) noexcept;
    // The job has come near the end of the memory: lanes have to go. True once a second at most,
    // which is how often the driver is asked.
    bool pressed() noexcept;
    // What the largest lane took so far; 0: none was measured.
    std::size_t largest() const noexcept { return largest_; }

private:
    bool ask(std::size_t& free, std::size_t& total) noexcept;

    const int device_;
    cuda::Context context_ = nullptr;
    std::size_t before_ = 0;   // free before the lanes that are being made; 0: not known
    std::size_t largest_ = 0;  // taken by one lane
    std::int64_t asked_ns_ = 0;
};

}  // namespace deft::director
