// SPDX-License-Identifier: Apache-2.0
#include "perf/anchors/fit.h"

#include <algorithm>
#include <cmath>

namespace deft::anchors {
namespace {

// Rate, ring step, per message, contention, per tensor: what a search may try. Rates end at the
// line's own; nothing else may be larger than what such a system could plausibly have.
constexpr double kFloors[Constants::kCount] = {1e8, 1e-6, 1e-5, 1e-3, 1e-5};
constexpr double kCeilings[kLinks][Constants::kCount] = {{1.25e9, 100e-6, 2e-3, 0.3, 1e-3},
                                                         {12.5e9, 100e-6, 2e-3, 0.3, 1e-3}};

class Search {
public:
    Search(int link, const std::array<Constants, kMethods>& start)
        : link_(link), constants_(start), of_(residuals(link, start)), loss_(loss(of_)) {}

    // Lowers the loss by changing one or two constants of a method at a time, in ever smaller
    // steps.
    void run() {
        for (double step = 0.3; step > 0.003; step *= 0.5) {
            bool improved = true;
            for (int round = 0; improved && round < 5; ++round) {
                improved = false;
                for (int k = 0; k < kMethods; ++k) {
                    for (int i = 0; i < Constants::kCount; ++i) {
                        for (int j = i; j < Constants::kCount; ++j) {
                            improved = try_around(k, i, j, step) || improved;
                        }
                    }
                }
            }
        }
    }
    const std::array<Constants, kMethods>& constants() const { return constants_; }

private:
    double moved(int field, double value, double factor) const {
        const double next = factor > 1 ? std::max(value * factor, kFloors[field]) : value * factor;
        return std::min(next < kFloors[field] ? 0 : next, kCeilings[link_][field]);
    }

    bool try_around(int method, int i, int j, double step) {
        const auto k = static_cast<std::size_t>(method);
        const Constants old = constants_[k];
        const double factors[] = {1 + step, 1 / (1 + step)};
        for (const double first : factors) {
            for (const double second : factors) {
                if (i == j && first != second) {
                    continue;
                }
                constants_[k] = old;
                constants_[k].at(i) = moved(i, constants_[k].at(i), first);
                if (i != j) {
                    constants_[k].at(j) = moved(j, constants_[k].at(j), second);
                }
                Residuals of = of_;
                for (int m = 0; m < kModels; ++m) {
                    for (int s = 0; s < kSizes; ++s) {
                        of.seconds[m][method][s] = simulated(link_, m, method, s, constants_[k]);
                    }
                }
                const double now = loss(of);
                if (now < loss_ * (1 - 1e-4)) {
                    loss_ = now;
                    of_ = of;
                    return true;
                }
            }
        }
        constants_[k] = old;
        return false;
    }

    // Close to the largest relative error of its six rows, but smooth: a search that changes few
    // constants at a time gets stuck on the maximum itself.
    double method_loss(const Residuals& of, int method) const {
        double sum = 0;
        for (int m = 0; m < kModels; ++m) {
            for (int s = 0; s < kSizes; ++s) {
                sum += std::pow(of.error(link_, m, method, s), 6);
            }
        }
        return std::pow(sum / (kModels * kSizes), 1.0 / 6);
    }

    double loss(const Residuals& of) const {
        double sum = 0;
        for (int k = 0; k < kMethods; ++k) {
            sum += method_loss(of, k);
        }
        return sum + order_penalty(of);
    }

    double order_penalty(const Residuals& of) const {
        constexpr double kMargin = 0.001;
        double sum = 0;
        for (int m = 0; m < kModels; ++m) {
            for (int s = 0; s < kSizes; ++s) {
                for (int a = 0; a < kMethods; ++a) {
                    for (int b = a + 1; b < kMethods; ++b) {
                        const double real = measured(m, link_, a, s) / measured(m, link_, b, s) - 1;
                        const double ours = of.seconds[m][a][s] / of.seconds[m][b][s] - 1;
                        const double ahead = real > 0 ? ours : -ours;
                        sum += std::max(0.0, kMargin - ahead);
                    }
                }
            }
        }
        return 10 * sum;
    }

    const int link_;
    std::array<Constants, kMethods> constants_;
    Residuals of_;
    double loss_;
};

}  // namespace

std::array<Constants, kMethods> fit_link(int link) {
    // Where a coarse search over start-ups and framework costs ended.
    const std::array<Constants, kMethods> start[kLinks] = {
        {{{1.2e9, 1e-6, 2e-5, 0.05, 1e-5},
          {1.15e9, 1e-5, 1e-4, 0.1, 1e-4},
          {1.1e9, 1e-5, 1e-4, 0.02, 1e-5},
          {1.2e9, 9e-6, 1e-4, 0.2, 7e-4}}},
        {{{5e9, 1e-6, 2e-5, 0.05, 1e-5},
          {3.6e9, 6e-6, 4e-4, 0.08, 1e-5},
          {2.9e9, 1e-6, 1.4e-5, 0.13, 2.5e-5},
          {1.2e10, 1.5e-5, 2.6e-4, 0.1, 6.8e-4}}},
    };
    Search search(link, start[link]);
    search.run();
    return search.constants();
}

}  // namespace deft::anchors
