// SPDX-License-Identifier: Apache-2.0
#include "perf/anchors/fit.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace deft::anchors {
namespace {

// Rate, ring step, per message, contention, per tensor: what a search may try. Rates end at the
// line's own; nothing else may be larger than what such a system could plausibly have. Below its
// floor a constant is 0.
constexpr double kFloors[Constants::kCount] = {1e8, 1e-6, 1e-5, 1e-3, 1e-5};
constexpr double kCeilings[kLinks][Constants::kCount] = {{1.25e9, 100e-6, 3e-3, 0.3, 1e-3},
                                                         {12.5e9, 100e-6, 3e-3, 0.3, 1e-3}};

constexpr int kSamples = 600;  // random points per method
constexpr int kStarts = 4;     // the best of them, improved one by one

// Close to the largest relative error of a method's six rows, but smooth: a search that changes
// few constants at a time gets stuck on the maximum itself.
double method_loss(const Residuals& of, int link, int method) {
    double sum = 0;
    for (int m = 0; m < kModels; ++m) {
        for (int s = 0; s < kSizes; ++s) {
            sum += std::pow(of.error(link, m, method, s), 6);
        }
    }
    return std::pow(sum / (kModels * kSizes), 1.0 / 6);
}

double order_penalty(const Residuals& of, int link) {
    constexpr double kMargin = 0.0005;
    double sum = 0;
    for (int m = 0; m < kModels; ++m) {
        for (int s = 0; s < kSizes; ++s) {
            for (int a = 0; a < kMethods; ++a) {
                for (int b = a + 1; b < kMethods; ++b) {
                    const double real = measured(m, link, a, s) / measured(m, link, b, s) - 1;
                    const double ours = of.seconds[m][a][s] / of.seconds[m][b][s] - 1;
                    const double ahead = real > 0 ? ours : -ours;
                    sum += std::max(0.0, kMargin - ahead);
                }
            }
        }
    }
    return 10 * sum;
}

class Search {
public:
    Search(int link, const std::array<Constants, kMethods>& start)
        : link_(link), constants_(start) {
        for (int k = 0; k < kMethods; ++k) {
            simulate(of_, k, constants_[static_cast<std::size_t>(k)]);
        }
    }

    // From the best of many random points, each method by itself: orders do not count yet.
    void scatter() {
        for (int k = 0; k < kMethods; ++k) {
            scatter(k);
        }
    }

    // Lowers the loss by changing one or two constants of a method at a time, in ever smaller
    // steps.
    void improve() {
        loss_ = joint_loss(of_);
        for (double step = 0.3; step > 0.002; step *= 0.5) {
            bool improved = true;
            for (int round = 0; improved && round < 6; ++round) {
                improved = false;
                for (int k = 0; k < kMethods; ++k) {
                    improved = round_of(k, step) || improved;
                }
            }
        }
    }

    const std::array<Constants, kMethods>& constants() const { return constants_; }

private:
    void simulate(Residuals& of, int method, const Constants& c) const {
        for (int m = 0; m < kModels; ++m) {
            for (int s = 0; s < kSizes; ++s) {
                of.seconds[m][method][s] = simulated(link_, m, method, s, c);
            }
        }
    }

    double joint_loss(const Residuals& of) const {
        double sum = order_penalty(of, link_);
        for (int k = 0; k < kMethods; ++k) {
            sum += method_loss(of, link_, k);
        }
        return sum;
    }

    double loss(const Residuals& of) const {
        return alone_ < 0 ? joint_loss(of) : method_loss(of, link_, alone_);
    }

    void scatter(int method) {
        std::mt19937_64 random(static_cast<std::uint64_t>(link_ * kMethods + method));
        const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1.0p-53; };
        std::vector<std::pair<double, Constants>> found;
        for (int i = 0; i < kSamples; ++i) {
            Constants c;
            for (int f = 0; f < Constants::kCount; ++f) {
                const double high = kCeilings[link_][f];
                const double low = f == 0 ? high / 6 : kFloors[f];
                const bool none = f > 0 && uniform() < 0.25;
                c.at(f) = none ? 0 : low * std::pow(high / low, uniform());
            }
            Residuals of = of_;
            simulate(of, method, c);
            found.emplace_back(method_loss(of, link_, method), c);
        }
        std::stable_sort(found.begin(), found.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
        const auto k = static_cast<std::size_t>(method);
        alone_ = method;
        double least = INFINITY;
        Constants best;
        for (int i = 0; i < kStarts; ++i) {
            constants_[k] = found[static_cast<std::size_t>(i)].second;
            simulate(of_, method, constants_[k]);
            loss_ = loss(of_);
            for (double step = 0.3; step > 0.01; step *= 0.5) {
                for (int round = 0; round < 6 && round_of(method, step); ++round) {
                }
            }
            if (loss_ < least) {
                least = loss_;
                best = constants_[k];
            }
        }
        alone_ = -1;
        constants_[k] = best;
        simulate(of_, method, best);
    }

    double moved(int field, double value, double factor) const {
        const double next = factor > 1 ? std::max(value * factor, kFloors[field]) : value * factor;
        return std::min(next < kFloors[field] ? 0 : next, kCeilings[link_][field]);
    }

    bool round_of(int method, double step) {
        bool improved = false;
        for (int i = 0; i < Constants::kCount; ++i) {
            for (int j = i; j < Constants::kCount; ++j) {
                improved = try_around(method, i, j, step) || improved;
            }
        }
        return improved;
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
                simulate(of, method, constants_[k]);
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

    const int link_;
    std::array<Constants, kMethods> constants_;
    Residuals of_;
    double loss_ = INFINITY;
    int alone_ = -1;  // the one method whose loss counts; -1: all, and their order
};

}  // namespace

std::array<Constants, kMethods> fit_link(int link) {
    Search search(link, {});
    search.scatter();
    search.improve();
    return search.constants();
}

}  // namespace deft::anchors
