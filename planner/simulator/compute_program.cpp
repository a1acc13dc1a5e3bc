// SPDX-License-Identifier: Apache-2.0
#include "planner/simulator/compute_program.h"

#include <algorithm>
#include <cmath>

namespace deft::planner {
namespace {

// splitmix64 (Steele, Lea, Flood 2014): any counter gives an independent uniform number.
double uniform(std::uint64_t seed, std::uint64_t rank, std::uint64_t iteration) {
    std::uint64_t z = seed * 0x9e3779b97f4a7c15ULL + rank * 0xd1342543de82ef95ULL +
                      (iteration + 1) * 0xda942042e4dd58b5ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    return static_cast<double>(z >> 11) * 0x1.0p-53;
}

}  // namespace

ComputeProgram::ComputeProgram(const Profile& profile, Barrier barrier,
                               const Simulation& simulation, std::uint32_t iterations)
    : profile_(profile),
      barrier_(barrier),
      simulation_(simulation),
      iterations_(iterations),
      buckets_(static_cast<std::uint32_t>(profile.size())) {
    // Ranks that compute alike are one: without jitter there are few kinds.
    const std::uint32_t ranks = std::max(1U, simulation.ranks);
    if (simulation.jitter > 0) {
        base_.assign(ranks, 1.0);
        for (std::size_t r = 0; r < std::min<std::size_t>(ranks, simulation.compute_factor.size());
             ++r) {
            base_[r] = simulation.compute_factor[r];
        }
    } else {
        base_.assign(simulation.compute_factor.begin(), simulation.compute_factor.end());
        base_.resize(std::min<std::size_t>(base_.size(), ranks));
        if (base_.size() < ranks) {
            base_.push_back(1.0);
        }
        std::sort(base_.begin(), base_.end());
        base_.erase(std::unique(base_.begin(), base_.end()), base_.end());
    }
    cursor_.assign(base_.size(), 0.0);
    factors_ = base_;
    ready_.assign(std::size_t{iterations} * buckets_, INFINITY);
    backward_start_.assign(iterations + 1, INFINITY);
    forward_start_.assign(iterations, INFINITY);
    rest_ = profile.forward;
    for (const Bucket& bucket : profile.buckets) {
        rest_ -= bucket.forward;
    }
    rest_ = std::max(0.0, rest_);
    backward();
}

void ComputeProgram::draw_factors() {
    if (simulation_.jitter <= 0) {
        return;
    }
    for (std::size_t r = 0; r < factors_.size(); ++r) {
        factors_[r] =
            base_[r] * (1 + simulation_.jitter * uniform(simulation_.seed, r, iteration_));
    }
}

double ComputeProgram::slowest() const {
    return *std::max_element(cursor_.begin(), cursor_.end());
}

void ComputeProgram::backward() {
    backward_start_[iteration_] = slowest();
    marks_.push_back({Mark::Kind::BackwardStart, backward_start_[iteration_], iteration_, 0});
    if (iteration_ == iterations_) {
        state_ = State::Finished;
        frontier_ = backward_start_[iteration_];
        return;
    }
    draw_factors();
    for (std::uint32_t k = 0; k < buckets_; ++k) {
        double last = 0;
        const double work = profile_.buckets[k].ready;
        for (std::size_t r = 0; r < cursor_.size(); ++r) {
            last = std::max(last, cursor_[r] + factors_[r] * work);
        }
        ready_[iteration_ * buckets_ + k] = last;
    }
    for (std::size_t r = 0; r < cursor_.size(); ++r) {
        cursor_[r] += factors_[r] * profile_.backward;
    }
    frontier_ = slowest();
    marks_.push_back({Mark::Kind::BackwardEnd, frontier_, iteration_, 0});
    state_ = State::AtUpdate;
    awaited_ = kAll;
    if (barrier_ == Barrier::Layer) {
        forward_start_[iteration_] = frontier_;
        state_ = State::InForward;
        awaited_ = buckets_ - 1;
    }
}

void ComputeProgram::resume(double work) {
    for (double& cursor : cursor_) {
        cursor = std::max(cursor, work);
    }
    const double from = std::max(frontier_, work);
    if (state_ == State::AtUpdate) {
        forward_start_[iteration_] = from;
        marks_.push_back({Mark::Kind::ForwardStart, from, iteration_, kAll});
        for (std::size_t r = 0; r < cursor_.size(); ++r) {
            cursor_[r] += factors_[r] * profile_.forward;
        }
        ++iteration_;
        backward();
        return;
    }
    marks_.push_back({Mark::Kind::ForwardStart, from, iteration_, awaited_});
    const double own = profile_.buckets[awaited_].forward + (awaited_ == 0 ? rest_ : 0);
    for (std::size_t r = 0; r < cursor_.size(); ++r) {
        cursor_[r] += factors_[r] * own;
    }
    frontier_ = slowest();
    marks_.push_back({Mark::Kind::Pause, frontier_, iteration_, awaited_});
    if (awaited_ == 0) {
        ++iteration_;
        backward();
    } else {
        --awaited_;
    }
}

}  // namespace deft::planner
