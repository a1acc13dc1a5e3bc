// SPDX-License-Identifier: Apache-2.0
#include "perf/anchors/left_out.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "perf/anchors/system_model.h"
#include "planner/policies/policy.h"

namespace deft::anchors {
namespace {

// MG-WFBP decides with the start-ups that its authors' code stores, whatever the link's own are:
// seconds at 8, 16 and 32 GPUs over 10GbE and over InfiniBand.
constexpr double kStoredStartups[kLinks][kSizes] = {{5.23e-4, 9.08e-4, 4.04e-3},
                                                    {9.75e-5, 7.08e-4, 4.06e-4}};
// What a search may try; a constant below a hundredth of its ceiling is 0, a rate a sixth.
constexpr double kCeilings[SharedConstants::kCount] = {
    1.25e9, 100e-6, 0.3, 4, 12.5e9, 100e-6, 0.3, 4, 1e-3, 3e-3, 1e-3, 3e-3, 1e-3, 3e-3, 1e-3, 3e-3};
constexpr int kStarts = 3;
constexpr int kSamples = 80;
constexpr int kSteps = 700;
constexpr double kPrior = 0.003;  // a constant at its ceiling costs this much

bool is_rate(int i) {
    return i == 0 || i == 4;
}

double floor_of(int i) {
    return kCeilings[i] / (is_rate(i) ? 6 : 100);
}

double loss(SharedConstants constants, int model) {
    double sum = 0;
    for (int l = 0; l < kLinks; ++l) {
        for (int k = 0; k < kMethods; ++k) {
            for (int s = 0; s < kSizes; ++s) {
                const double error =
                    std::log(simulated(constants, l, model, k, s) / measured(model, l, k, s));
                sum += std::pow(std::abs(error), 1.5);
            }
        }
    }
    double prior = 0;
    for (int i = 0; i < SharedConstants::kCount; ++i) {
        prior += is_rate(i) ? 0 : std::pow(constants.at(i) / kCeilings[i], 2);
    }
    return sum / (kLinks * kMethods * kSizes) + kPrior * prior;
}

class Annealing {
public:
    Annealing(int model, std::uint64_t seed) : model_(model), random_(seed) {}

    std::pair<double, SharedConstants> run() {
        for (int k = 0; k < kSamples; ++k) {
            SharedConstants drawn;
            for (int i = 0; i < SharedConstants::kCount; ++i) {
                const bool none = !is_rate(i) && uniform() < 0.3;
                drawn.at(i) =
                    none ? 0 : floor_of(i) * std::pow(kCeilings[i] / floor_of(i), uniform());
            }
            keep(drawn);
        }
        for (int k = 0; k < kSteps; ++k) {
            SharedConstants moved = best_;
            const double stride = 0.5 * std::pow(0.02, static_cast<double>(k) / kSteps);
            do {
                move(moved, static_cast<int>(random_() % SharedConstants::kCount), stride);
            } while (uniform() < 0.5);
            keep(moved);
        }
        return {least_, best_};
    }

private:
    double uniform() { return static_cast<double>(random_() >> 11) * 0x1.0p-53; }
    void move(SharedConstants& constants, int i, double stride) {
        double& value = constants.at(i);
        value = std::min(value * std::exp(2 * stride * (uniform() + uniform() - 1)), kCeilings[i]);
        if (value < floor_of(i)) {
            const bool back = is_rate(i) || uniform() < 0.3;
            value = back ? floor_of(i) * (1 + uniform()) : 0;
        }
    }
    void keep(const SharedConstants& constants) {
        const double there = loss(constants, model_);
        if (there < least_) {
            least_ = there;
            best_ = constants;
        }
    }

    const int model_;
    std::mt19937_64 random_;
    double least_ = INFINITY;
    SharedConstants best_;
};

}  // namespace

double& SharedConstants::at(int i) {
    if (i < 4 * kLinks) {
        OfLink& link = links[static_cast<std::size_t>(i / 4)];
        double* const fields[] = {&link.rate, &link.hop, &link.contention, &link.penalty};
        return *fields[i % 4];
    }
    OfMethod& method = methods[static_cast<std::size_t>(i - 4 * kLinks) / 2];
    return i % 2 == 0 ? method.framework : method.per_message;
}

double simulated(const SharedConstants& constants, int link, int model, int method, int size) {
    const SharedConstants::OfLink& of_link = constants.links[static_cast<std::size_t>(link)];
    const SharedConstants::OfMethod& own = constants.methods[static_cast<std::size_t>(method)];
    Constants c;
    c.rate = of_link.rate;
    c.hop = of_link.hop;
    c.contention = of_link.contention;
    c.framework = own.framework;
    c.per_message = own.per_message;
    planner::Fabric fabric = link_of(c, method, kGpus[size]);
    fabric.links[0].overlap_penalty = of_link.penalty;
    const double startup = method == kMgWfbp ? kStoredStartups[link][size] : 0;
    return system_seconds(handled(tensors_of(model), c), fabric, method, startup);
}

SharedConstants fit_shared(int model) {
    std::pair<double, SharedConstants> best{INFINITY, {}};
    for (int start = 0; start < kStarts; ++start) {
        const auto found = Annealing(model, static_cast<std::uint64_t>(7 * start + 1)).run();
        if (found.first < best.first) {
            best = found;
        }
    }
    return best.second;
}

LeftOut left_out(const std::array<SharedConstants, kModels>& fitted_to, int link) {
    LeftOut result;
    double sum = 0;
    for (int m = 0; m < kModels; ++m) {
        const SharedConstants& constants = fitted_to[static_cast<std::size_t>(1 - m)];
        for (int s = 0; s < kSizes; ++s) {
            for (int k = 0; k < kMethods; ++k) {
                result.seconds[m][k][s] = simulated(constants, link, m, k, s);
                sum += std::abs(std::log(result.seconds[m][k][s] / measured(m, link, k, s)));
            }
            for (int a = 0; a < kMethods; ++a) {
                for (int b = a + 1; b < kMethods; ++b) {
                    const double real = measured(m, link, a, s) / measured(m, link, b, s) - 1;
                    const double ours = result.seconds[m][a][s] / result.seconds[m][b][s] - 1;
                    const bool apart = std::abs(real) >= 0.02;
                    result.pairs += apart ? 1 : 0;
                    result.wrong += apart && (real > 0) != (ours > 0) ? 1 : 0;
                }
            }
        }
    }
    result.error = std::exp(sum / (kModels * kMethods * kSizes)) - 1;
    return result;
}

}  // namespace deft::anchors
