// SPDX-License-Identifier: Apache-2.0
#include "perf/anchors/fit.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace deft::anchors {
namespace {

// What a search may try: rates end at the lines' own (PCIe 3.0 with 16 lanes carries 12 GB/s), the
// rest at what such a system could plausibly have.
constexpr double kCeilings[Constants::kCount] = {1.25e9, 12e9, 30e-6, 1e-3, 60e-6, 8e-3};
// The rows of one model leave some directions open. What a factor of e away from the likely value
// costs: as much as a row that is off by a fiftieth.
constexpr double kPrior = 0.003;
constexpr int kSteps = 600;
constexpr int kStarts = 2;

double loss(Constants constants, const std::vector<int>& models) {
    double sum = 0;
    Constants likely;
    for (int i = 0; i < Constants::kCount; ++i) {
        sum += kPrior * std::pow(std::log(constants.at(i) / likely.at(i)), 2);
    }
    for (const int m : models) {
        for (int l = 0; l < kLinks; ++l) {
            for (int k = 0; k < kMethods; ++k) {
                for (int s = kFirstFitted; s < kSizes; ++s) {
                    const double error =
                        std::log(simulated(constants, m, l, k, s) / measured(m, l, k, s));
                    sum += std::pow(std::abs(error), 1.5);
                }
            }
        }
    }
    return sum;
}

// Annealing without steps uphill: ever smaller changes of a few constants at a time.
std::pair<double, Constants> descend(const std::vector<int>& models, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1.0p-53; };
    Constants best;
    double least = loss(best, models);
    for (int k = 0; k < kSteps; ++k) {
        Constants moved = best;
        const double stride = 0.5 * std::pow(0.02, static_cast<double>(k) / kSteps);
        do {
            const int i = static_cast<int>(random() % Constants::kCount);
            const double by = std::exp(2 * stride * (uniform() + uniform() - 1));
            moved.at(i) = std::min(moved.at(i) * by, kCeilings[i]);
        } while (uniform() < 0.5);
        const double there = loss(moved, models);
        if (there < least) {
            least = there;
            best = moved;
        }
    }
    return {least, best};
}

}  // namespace

Constants fit(const std::vector<int>& models) {
    std::pair<double, Constants> best{INFINITY, {}};
    for (std::uint64_t start = 0; start < kStarts; ++start) {
        const auto found = descend(models, 7 * start + 1);
        if (found.first < best.first) {
            best = found;
        }
    }
    return best.second;
}

Judgement judge(const std::function<const Constants&(int model)>& constants,
                const std::vector<int>& models, int link, int first_size, int sizes) {
    Judgement result;
    double sum = 0;
    int rows = 0;
    for (const int m : models) {
        for (int s = first_size; s < sizes; ++s) {
            double ours[kMethods];
            for (int k = 0; k < kMethods; ++k) {
                ours[k] = simulated(constants(m), m, link, k, s);
                const double error = std::abs(std::log(ours[k] / measured(m, link, k, s)));
                sum += error;
                ++rows;
                result.largest = std::max(result.largest, std::expm1(error));
            }
            for (int a = 0; a < kMethods; ++a) {
                for (int b = a + 1; b < kMethods; ++b) {
                    const double real = measured(m, link, a, s) / measured(m, link, b, s) - 1;
                    const bool apart = std::abs(real) >= 0.02;
                    result.pairs += apart ? 1 : 0;
                    result.wrong += apart && (real > 0) != (ours[a] > ours[b]) ? 1 : 0;
                }
            }
        }
    }
    result.error = std::expm1(sum / rows);
    return result;
}

}  // namespace deft::anchors
