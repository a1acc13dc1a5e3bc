// SPDX-License-Identifier: Apache-2.0
// Simulated annealing from the stored constants: the largest error, as a fraction of its bar, with
// every pair of methods in the measured order. The coordinate search of fit.cpp gets stuck where a
// row can only improve if all four methods move together.
#include <algorithm>
#include <cmath>
#include <random>

#include "perf/anchors/constants.h"
#include "perf/anchors/fit.h"

namespace deft::anchors {
namespace {

// As in fit.cpp: what a search may try; below its floor a constant is 0.
constexpr double kFloors[Constants::kCount] = {1e8, 1e-6, 1e-5, 1e-3, 1e-5};
constexpr double kCeilings[Constants::kCount] = {0, 100e-6, 3e-3, 0.3, 1e-3};
constexpr double kLineRates[kLinks] = {1.25e9, 12.5e9};
constexpr int kSteps = 32000;

double loss(const Residuals& of, int link) {
    double worst = 0;
    double sum = 0;
    double disorder = 0;
    for (int m = 0; m < kModels; ++m) {
        for (int s = 0; s < kSizes; ++s) {
            for (int a = 0; a < kMethods; ++a) {
                const double error = std::abs(of.error(link, m, a, s)) / bar(link, a);
                worst = std::max(worst, error);
                sum += std::pow(error, 8);
                for (int b = a + 1; b < kMethods; ++b) {
                    const double real = measured(m, link, a, s) / measured(m, link, b, s) - 1;
                    const double ours = of.seconds[m][a][s] / of.seconds[m][b][s] - 1;
                    disorder += std::max(0.0, 0.0003 - (real > 0 ? ours : -ours));
                }
            }
        }
    }
    return worst + 0.05 * std::pow(sum / (kModels * kSizes * kMethods), 1.0 / 8) + 50 * disorder;
}

void simulate(Residuals& of, int link, int method, const Constants& c) {
    for (int m = 0; m < kModels; ++m) {
        for (int s = 0; s < kSizes; ++s) {
            of.seconds[m][method][s] = simulated(link, m, method, s, c);
        }
    }
}

}  // namespace

std::array<Constants, kMethods> refine_link(int link) {
    std::mt19937_64 random(5);
    const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1.0p-53; };
    auto now = kConstants[static_cast<std::size_t>(link)];
    Residuals of = residuals(link, now);
    double cost = loss(of, link);
    auto best = now;
    double least = cost;
    for (int step = 0; step < kSteps; ++step) {
        const double left = 1 - static_cast<double>(step) / kSteps;
        const double stride = 0.15 * left + 0.003;
        auto next = now;
        Residuals moved = of;
        const bool one = uniform() < 0.5;
        const std::uint64_t methods = one ? 1ULL << random() % kMethods : random();
        for (int k = 0; k < kMethods; ++k) {
            if ((methods >> k & 1) == 0) {
                continue;
            }
            Constants& c = next[static_cast<std::size_t>(k)];
            for (int f = 0; f < Constants::kCount; ++f) {
                if (uniform() < 0.5) {
                    continue;
                }
                // Symmetric around the old value on a log scale, with thin tails.
                const double factor =
                    std::exp(stride * (uniform() + uniform() - uniform() - uniform()) * 1.7);
                double value = c.at(f) * factor;
                if (value < kFloors[f]) {
                    value = uniform() < 0.3 ? kFloors[f] * (1 + uniform()) : 0;
                }
                c.at(f) = std::min(value, f == 0 ? kLineRates[link] : kCeilings[f]);
            }
            simulate(moved, link, k, c);
        }
        const double there = loss(moved, link);
        if (there < cost || uniform() < std::exp((cost - there) / (0.02 * left + 1e-5))) {
            cost = there;
            now = next;
            of = moved;
            if (cost < least) {
                least = cost;
                best = now;
            }
        }
    }
    return best;
}

}  // namespace deft::anchors
