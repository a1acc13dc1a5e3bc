// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "softdev/nccl/program.h"

namespace softdev::nccl {

// Runs the programs of one Work side by side on the calling thread: the part of a collective that a
// GPU kernel does. Holds the place of each program; advance() never waits.
class Kernel {
public:
    explicit Kernel(const Work& work);

    enum class State { kMoved, kStuck, kDone, kBroken };
    // kStuck: nothing could be done now. kBroken: the network delivered something else than was
    // sent.
    State advance();
    const std::string& error() const { return error_; }
    // While stuck: does any program poll memory that the network may still write (LL)?
    bool polling() const { return polling_; }
    // While stuck: which peers it waits for, for reports.
    std::string waiting_for() const;

private:
    bool ready(const Program& program, const Step& step);
    bool run_step(const Program& program, const Step& step);
    bool gather_inputs(const Program& program, const Step& step, const void** inputs);
    void publish(const Program& program, const Step& step, size_t bytes);

    const Work& work_;
    Reduction reduction_;
    size_t element_;
    std::vector<size_t> at_;
    std::vector<std::byte> scratch_;
    std::string error_;
    bool polling_ = false;
};

}  // namespace softdev::nccl
