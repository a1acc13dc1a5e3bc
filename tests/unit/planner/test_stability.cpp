// SPDX-License-Identifier: Apache-2.0
// The limits of late steps against what an optimizer does on a quadratic, step by step.
#include "planner/stability.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <ostream>
#include <vector>

namespace deft::planner {

static void PrintTo(const LateSteps& steps, std::ostream* out) {
    *out << "momentum " << steps.momentum << (steps.nesterov ? " nesterov" : "") << " delay "
         << steps.delay << " merge " << steps.merge << " weights " << steps.weights[0] << " "
         << steps.weights[1] << " " << steps.weights[2];
}

namespace {

using Weights = std::array<double, 3>;
constexpr Weights kNone{1, 0, 0};
constexpr Weights kQuad{3, -3, 1};
constexpr Weights kDamp{0.5, 0, 0};

constexpr Weights lead(double c) {
    return {1 + c, -c, 0};
}

// As torch.optim.SGD, told its gradient and learning rate.
class Sgd {
public:
    Sgd(double momentum, bool nesterov) : momentum_(momentum), nesterov_(nesterov) {}
    double step(double gradient) {
        buffer_ = momentum_ * buffer_ + gradient;
        return nesterov_ ? gradient + momentum_ * buffer_ : buffer_;
    }

private:
    double momentum_;
    bool nesterov_;
    double buffer_ = 0;
};

// Whether the loss curvature x^2 / 2 grows for a job of learning rate 0.5 whose gradients travel
// as a plan has it: each in a queue, and out of that in sums.
bool grows(const LateSteps& steps, double a) {
    constexpr double kRate = 0.5;
    constexpr int kIterations = 3000;
    Sgd optimizer(steps.momentum, steps.nesterov);
    std::deque<double> under_way;
    std::vector<double> sums;
    double x = 1;
    double first = 0;
    double last = 0;
    for (int t = 0; t < kIterations; ++t) {
        under_way.push_back(a / kRate * x);
        double update = 0;
        if ((t + 1) % static_cast<int>(steps.merge) == 0) {
            double sum = 0;
            while (under_way.size() > steps.delay) {
                sum += under_way.front();
                under_way.pop_front();
            }
            sums.push_back(sum);
            for (std::size_t j = 0; j < 3 && j < sums.size(); ++j) {
                update += steps.weights[j] * sums[sums.size() - 1 - j];
            }
        }
        x -= kRate * optimizer.step(update);
        if (std::abs(x) > 1e100) {
            return true;
        }
        double& most = t < kIterations / 5 ? first : last;
        most = std::max(most, std::abs(x));
    }
    return last > first;
}

// The largest a that does not grow, from below; stability_limit() looks no further than 4.
double found_limit(const LateSteps& steps) {
    constexpr double kMost = 4;
    double a = 1e-3;
    while (a < kMost && !grows(steps, a)) {
        a *= 1.3;
    }
    double least = a / 1.3;
    for (int i = 0; i < 9; ++i) {
        const double mid = 0.5 * (least + a);
        (grows(steps, mid) ? a : least) = mid;
    }
    return std::min(a, kMost);
}

TEST(LateSteps, LimitsAreWhereAJobDiverges) {
    for (const double momentum : {0.0, 0.9}) {
        for (const bool nesterov : {false, true}) {
            for (const Weights& weights : {kNone, lead(momentum), kQuad, kDamp}) {
                for (const std::uint32_t delay : {0U, 1U, 2U}) {
                    for (const std::uint32_t merge : {1U, 3U}) {
                        const LateSteps steps{momentum, nesterov, delay, merge, weights};
                        const double limit = std::min(stability_limit(steps), 4.0);
                        EXPECT_NEAR(limit / found_limit(steps), 1, 0.01)
                            << testing::PrintToString(steps);
                    }
                }
            }
        }
    }
}

TEST(LateSteps, UnmergedOnesAreTheHeavyBall) {
    for (const double momentum : {0.0, 0.5, 0.9, 0.99}) {
        for (const std::uint32_t delay : {0U, 1U, 3U}) {
            const double limit = stability_limit(momentum, delay);
            EXPECT_NEAR(stability_limit(LateSteps{momentum, false, delay}), limit, 0.01 * limit);
        }
    }
}

// The heavy ball on gradients that lead by momentum is Nesterov's.
TEST(LateSteps, LeadMakesUpForWhatNesterovHasNot) {
    const double limit = stability_limit(LateSteps{0.9, true, 1, 1, kNone});
    EXPECT_NEAR(stability_limit(LateSteps{0.9, false, 1, 1, lead(0.9)}), limit, 1e-3);
    EXPECT_NEAR(limit, 0.25, 0.01);
}

// Which prediction is the best of one late iteration, by momentum.
TEST(LateSteps, QuadIsTheBestFromTwoThirdsMomentumOn) {
    const auto limit = [](double momentum, const Weights& weights) {
        return stability_limit(LateSteps{momentum, false, 1, 1, weights});
    };
    EXPECT_NEAR(limit(0.9, kQuad), 0.49, 0.01);
    for (const double momentum : {0.7, 0.9, 0.99}) {
        EXPECT_GT(limit(momentum, kQuad), limit(momentum, lead(momentum)));
    }
    for (const double momentum : {0.3, 0.6}) {
        EXPECT_LT(limit(momentum, kQuad), limit(momentum, lead(momentum)));
    }
    EXPECT_LT(limit(0.5, kQuad), limit(0.5, kNone));
}

}  // namespace
}  // namespace deft::planner
