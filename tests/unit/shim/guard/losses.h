// SPDX-License-Identifier: Apache-2.0
// Made-up trainings: how the loss falls, and how it scatters from iteration to iteration.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <random>
#include <string>

namespace deft::guard::test {

enum class Scatter { Normal, Heavy, Skewed };

// With a mean of 0 and a standard deviation of 1.
class Noise {
public:
    Noise(Scatter scatter, unsigned seed) : scatter_(scatter), random_(seed) {}
    double next() {
        switch (scatter_) {
            case Scatter::Normal:
                return normal_(random_);
            case Scatter::Heavy:  // Student's t with 3 degrees of freedom
                return student_(random_) / std::sqrt(3.0);
            case Scatter::Skewed: {  // a loss near 0 has a long tail upwards
                const double mean = std::exp(0.18);
                return (std::exp(0.6 * normal_(random_)) - mean) /
                       (mean * std::sqrt(std::exp(0.36) - 1));
            }
        }
        return 0;
    }

private:
    Scatter scatter_;
    std::mt19937 random_;
    std::normal_distribution<double> normal_;
    std::student_t_distribution<double> student_{3};
};

struct Schedule {
    std::string name;
    std::function<double(int)> loss;
    std::function<double(int)> rate;
};

inline double same(int) {
    return 0.1;
}
// Cosine, begun anew every 200 iterations.
inline double restarts(int t) {
    return 0.1 * (0.51 + 0.5 * std::cos(std::numbers::pi * (t % 200) / 200));
}

inline Schedule flat() {
    return {"flat", [](int) { return 1.0; }, same};
}
inline Schedule falling() {
    return {"falling", [](int t) { return 2.3 * std::exp(-t / 80.0) + 0.3; }, same};
}
inline Schedule slow() {
    return {"slow", [](int t) { return 2.3 / std::sqrt(1 + t / 20.0); }, same};
}
// Its fall ends at the very switch, or some time later.
inline Schedule plateau(int at) {
    return {"plateau", [at](int t) { return 2.3 - 1.5 * std::min(t, at) / at; }, same};
}
inline Schedule warm_restarts() {
    return {"warm restarts",
            [](int t) { return (2.3 * std::exp(-t / 80.0) + 0.3) * (1 + 8 * restarts(t)); },
            restarts};
}

}  // namespace deft::guard::test
