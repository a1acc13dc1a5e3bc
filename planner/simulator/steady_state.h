// SPDX-License-Identifier: Apache-2.0
// When a run repeats itself: the answer of simulate() is of that state, not of the way there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace deft::planner {

// Told of every cycle that begins and of every transfer that ends, it knows the last period that
// was unlike the one before. What a period does depends on as many before it as gradients and
// queues reach back: once so many are alike, all that follow are.
class SteadyState {
public:
    // Seconds below `least` are no difference. `reach`: periods that a period depends on.
    SteadyState(std::size_t transfers, std::uint32_t period, std::uint32_t reach, double least)
        : period_(period), reach_(reach), least_(least), finish_(transfers, INFINITY) {}

    // Transfer x of this period ended so many seconds after the start of its iteration.
    void ended(std::uint32_t x, std::uint32_t period, double finish) {
        if (!(std::abs(finish - finish_[x]) <= least_)) {
            changed_ = std::max(changed_, period);
        }
        finish_[x] = finish;
    }

    // Backward of this iteration begins. Iterations come one by one.
    void began(std::uint32_t iteration, double at) {
        starts_.push_back(at);
        if (iteration <= period_) {
            return;
        }
        const double before = starts_[iteration - period_] - starts_[iteration - period_ - 1];
        const double now = at - starts_[iteration - 1];
        if (std::abs(now - before) > least_) {
            changed_ = std::max(changed_, (iteration - 1) / period_);
        }
        if (iteration % period_ == 0 && iteration / period_ >= changed_ + reach_ + 2) {
            reached_ = iteration;
        }
    }

    // Iterations that were over when all periods before had become alike; 0: not yet.
    std::uint32_t reached() const { return reached_; }

private:
    const std::uint32_t period_;
    const std::uint32_t reach_;
    const double least_;
    std::uint32_t changed_ = 0;
    std::uint32_t reached_ = 0;
    std::vector<double> finish_;  // by transfer, seconds
    std::vector<double> starts_;  // by iteration, simulated time
};

}  // namespace deft::planner
