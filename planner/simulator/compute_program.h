// SPDX-License-Identifier: Apache-2.0
// The compute of all ranks in a simulation: backward, update, forward, over and over.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/simulator/simulator.h"

namespace deft::planner {

// Works on the work clock: seconds of compute that fit since the start, which runs slower than
// simulated time while links take compute away. Everything a rank does is a fixed amount on this
// clock, so the program runs ahead until it needs a reduced gradient that does not exist yet.
//
// A collective needs every rank, so only the slowest rank's times leave this class.
class ComputeProgram {
public:
    static constexpr std::uint32_t kAll = ~std::uint32_t{0};

    struct Mark {  // something that happens when the work clock reaches `work`
        enum class Kind : std::uint8_t { BackwardStart, ForwardStart, Pause, BackwardEnd } kind;
        double work = 0;
        std::uint32_t iteration = 0;
        std::uint32_t bucket = 0;  // first bucket of a forward segment, kAll before any
    };

    ComputeProgram(const Profile& profile, Barrier barrier, const Simulation& simulation,
                   std::uint32_t iterations);

    bool finished() const { return state_ == State::Finished; }
    // What the program needs before it can go on: the update of this iteration's whole gradient,
    // or of one bucket of it.
    std::uint32_t awaited_iteration() const { return iteration_; }
    std::uint32_t awaited_bucket() const { return awaited_; }
    // Goes on; the awaited data was there at `work`.
    void resume(double work);
    // Where the slowest rank has got to.
    double frontier() const { return frontier_; }

    // Infinite while not known.
    double ready(std::uint32_t iteration, std::uint32_t bucket) const {
        return ready_[iteration * buckets_ + bucket];
    }
    double stage_start(std::uint32_t iteration, Stage stage) const {
        return (stage == Stage::Backward ? backward_start_ : forward_start_)[iteration];
    }
    // Marks in the order of `work`; the caller consumes them.
    std::vector<Mark>& marks() { return marks_; }

private:
    enum class State : std::uint8_t { AtUpdate, InForward, Finished };

    void backward();
    void draw_factors();
    double slowest() const;

    const Profile& profile_;
    const Barrier barrier_;
    const Simulation& simulation_;
    const std::uint32_t iterations_;
    const std::uint32_t buckets_;
    State state_ = State::AtUpdate;
    std::uint32_t iteration_ = 0;
    std::uint32_t awaited_ = kAll;
    double frontier_ = 0;
    double rest_ = 0;              // forward compute no bucket owns
    std::vector<double> cursor_;   // per rank: where its compute has got to
    std::vector<double> base_;     // per rank: its constant factor
    std::vector<double> factors_;  // per rank: this iteration
    std::vector<double> ready_;
    std::vector<double> backward_start_;
    std::vector<double> forward_start_;
    std::vector<Mark> marks_;
};

}  // namespace deft::planner
