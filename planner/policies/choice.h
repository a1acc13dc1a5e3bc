// SPDX-License-Identifier: Apache-2.0
// The best of the plans offered, by the objective and the caps of the options.
#pragma once

#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

#include "planner/model/plan.h"
#include "planner/model/progress.h"

namespace deft::planner {

// Takes plans without predicted times and simulates those that may still win. Profile, fabric and
// options must outlive it.
class Choice {
public:
    Choice(const Profile& profile, const Fabric& fabric, const Options& options, Plan first)
        : profile_(profile),
          fabric_(fabric),
          options_(options),
          best_(std::move(first)),
          best_seconds_(seconds(best_)) {}

    // Seconds that count: those of an iteration, divided by what it is worth.
    double seconds(const Plan& plan) const { return seconds_that_count(plan, options_); }

    // Seconds per iteration in which compute waits; infinite if the plan was not simulated.
    double offer(Plan plan);
    // No plan that takes so long at least, its oldest gradient so late at least, can win.
    bool hopeless(double least, std::uint32_t age) const;
    // Nothing of this kind can be better by more than a tie.
    bool settled(double bound) const { return best_seconds_ <= bound * kTie; }
    Plan& best() { return best_; }

private:
    static constexpr double kTie = 1 + 1e-4;
    // What decides between plans that take equally long; the smaller wins.
    using Secondary = std::tuple<double, double, std::uint32_t, double, std::size_t, std::size_t>;

    bool allowed(const Plan& plan) const;
    Secondary secondary(const Plan& plan) const;

    const Profile& profile_;
    const Fabric& fabric_;
    const Options& options_;
    Plan best_;
    double best_seconds_;        // that count
    double fastest_ = INFINITY;  // seconds that count, of all plans seen
};

}  // namespace deft::planner
