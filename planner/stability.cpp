// SPDX-License-Identifier: Apache-2.0
#include "planner/stability.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

namespace deft::planner {
namespace {

// Whether all roots of the polynomial lie inside the circle of this radius (Schur-Cohn recursion).
// p[k] belongs to z^k.
bool roots_inside(std::vector<double> p, double radius) {
    double scale = 1;
    for (double& c : p) {
        c *= scale;
        scale *= radius;
    }
    while (p.size() > 1) {
        const double last = p.back();
        const double first = p.front();
        if (!(std::abs(first) < std::abs(last))) {
            return false;
        }
        const double k = first / last;
        std::vector<double> next(p.size() - 1);
        for (std::size_t i = 0; i + 1 < p.size(); ++i) {
            next[i] = p[i + 1] - k * p[p.size() - 2 - i];
        }
        double most = 0;
        for (const double c : next) {
            most = std::max(most, std::abs(c));
        }
        for (double& c : next) {
            c /= most > 0 ? most : 1;
        }
        p = std::move(next);
    }
    return true;
}

// Characteristic polynomial: z^{d+2} - (1+m) z^{d+1} + m z^{d} + a z, divided by z where possible:
// p(z) = z^{d+1} - (1+m) z^d + m z^{d-1} + a for d >= 1, and z^2 - (1+m-a) z + m for d = 0.
bool inside(double a, double momentum, std::uint32_t delay, double radius) {
    std::vector<double> p(delay == 0 ? 3 : delay + 2, 0.0);
    if (delay == 0) {
        p = {momentum, -(1 + momentum - a), 1};
    } else {
        p[delay + 1] = 1;
        p[delay] = -(1 + momentum);
        p[delay - 1] += momentum;
        p[0] += a;
    }
    return roots_inside(std::move(p), radius);
}

// x_{t+1} - (1+m) x_t + m x_{t-1} + a sum_j f_j x_{t-delay-j} = 0. Nesterov's step is the heavy
// ball's on the filtered gradient: (1+m) g_t - m g_{t-1}.
bool stable_unmerged(const LateSteps& steps, double a) {
    const double m = steps.momentum;
    std::vector<double> filter(steps.weights.begin(), steps.weights.end());
    if (steps.nesterov) {
        filter.push_back(0);
        for (std::size_t j = filter.size(); j-- > 0;) {
            filter[j] = (1 + m) * filter[j] - (j > 0 ? m * filter[j - 1] : 0);
        }
    }
    const std::size_t degree = steps.delay + filter.size();
    std::vector<double> p(degree + 1, 0.0);
    p[degree] = 1;
    p[degree - 1] -= 1 + m;
    p[degree - 2] += m;
    for (std::size_t j = 0; j < filter.size(); ++j) {
        p[degree - 1 - steps.delay - j] += a * filter[j];
    }
    return roots_inside(std::move(p), 1);
}

// What the job does, step by step, for so long that whatever grows is seen to.
bool stable_merged(const LateSteps& steps, double a) {
    constexpr std::size_t kIterations = 3000;
    constexpr std::size_t kSettled = 1000;
    constexpr double kFar = 1e100;
    const std::size_t merge = steps.merge;
    std::vector<double> gradients(kIterations, 0.0);
    std::array<double, 3> sums{};  // the latest first
    double x = 1;
    double v = 0;
    double early = 0;
    double late = 0;
    for (std::size_t t = 0; t < kIterations; ++t) {
        gradients[t] = a * x;
        double delivered = 0;
        if (t >= steps.delay && (t + 1) % merge == 0) {
            double sum = 0;
            for (std::size_t i = 0; i < merge && i + steps.delay <= t; ++i) {
                sum += gradients[t - steps.delay - i];
            }
            sums = {sum, sums[0], sums[1]};
            for (std::size_t j = 0; j < sums.size(); ++j) {
                delivered += steps.weights[j] * sums[j];
            }
        }
        v = steps.momentum * v + delivered;
        x -= steps.nesterov ? delivered + steps.momentum * v : v;
        if (!(std::abs(x) < kFar)) {
            return false;
        }
        double& most = t < kSettled ? early : late;
        most = std::max(most, std::abs(x));
    }
    return late < early;
}

bool stable(const LateSteps& steps, double a) {
    return steps.merge > 1 ? stable_merged(steps, a) : stable_unmerged(steps, a);
}

}  // namespace

double stability_limit(double momentum, std::uint32_t delay) {
    double lo = 0;
    double hi = 4;
    for (int i = 0; i < 60; ++i) {
        const double mid = 0.5 * (lo + hi);
        (inside(mid, momentum, delay, 1) ? lo : hi) = mid;
    }
    return lo;
}

// Stable ranges may have gaps, so the first a that is not stable is looked for from below.
double stability_limit(const LateSteps& steps) {
    constexpr double kLeast = 1e-4;
    constexpr double kMost = 4;
    constexpr double kStride = 1.15;
    double lo = 0;
    double hi = kLeast;
    while (hi < kMost && stable(steps, hi)) {
        lo = hi;
        hi *= kStride;
    }
    for (int i = 0; i < 12; ++i) {
        const double mid = 0.5 * (lo + hi);
        (stable(steps, mid) ? lo : hi) = mid;
    }
    return lo;
}

double contraction(double a, double momentum, std::uint32_t delay) {
    double lo = 0;
    double hi = 4;
    for (int i = 0; i < 60; ++i) {
        const double mid = 0.5 * (lo + hi);
        (inside(a, momentum, delay, mid) ? hi : lo) = mid;
    }
    return hi;
}

double delay_price(double a, double momentum, std::uint32_t delay) {
    if (delay == 0 || a <= 0) {
        return 1;
    }
    const double late = contraction(a, momentum, delay);
    const double now = contraction(a, momentum, 0);
    if (late >= 1) {
        return now >= 1 ? 1 : INFINITY;
    }
    return std::max(1.0, std::log(std::max(now, 1e-12)) / std::log(late));
}

}  // namespace deft::planner
