// SPDX-License-Identifier: Apache-2.0
#include "planner/stability.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace deft::planner {
namespace {

// Whether all roots of z^(d+1) ... lie inside the circle of this radius (Schur-Cohn recursion).
// Characteristic polynomial: z^{d+2} - (1+m) z^{d+1} + m z^{d} + a z, divided by z where possible:
// p(z) = z^{d+1} - (1+m) z^d + m z^{d-1} + a for d >= 1, and z^2 - (1+m-a) z + m for d = 0.
bool inside(double a, double momentum, std::uint32_t delay, double radius) {
    std::vector<double> p(delay == 0 ? 3 : delay + 2, 0.0);  // p[k] belongs to z^k
    if (delay == 0) {
        p = {momentum, -(1 + momentum - a), 1};
    } else {
        p[delay + 1] = 1;
        p[delay] = -(1 + momentum);
        p[delay - 1] += momentum;
        p[0] += a;
    }
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
