// SPDX-License-Identifier: Apache-2.0
// What the ranks' companions tell of a training, put together: one loss of each iteration, and the
// norms of what updates got. Pure: no clock, no threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>

#include "shim/guard/loss_trend.h"
#include "shim/guard/training_report.h"

namespace deft::guard {

// Iterations under plans, and what became of the loss.
struct LateStretch {
    std::uint64_t from = 0;  // the companion's iterations: the first whose loss late sums may have
    std::uint64_t to = 0;    // changed, and the last so far; 0, 0: there is none
    double expected = std::numeric_limits<double>::quiet_NaN();  // loss; NaN: not known
    double seen = std::numeric_limits<double>::quiet_NaN();
};

// On the rank that decides.
class TrainingWatch {
public:
    // `reporters`: ranks that tell, `own` among them. Norms are equal on all ranks.
    TrainingWatch(std::size_t reporters, int own) : reporters_(reporters), own_(own) {}

    // A plan is in force: sums of so many gradients at most, and what prediction makes of the norm
    // of a gradient that is nothing but noise.
    void plan(double merge, double amplification) {
        merge_ = merge;
        amplification_ = amplification;
    }
    // What one rank tells of an iteration. Why the plan in force must end; "": it need not.
    std::string note(int rank, const Training& training);
    // A plan has been ended.
    void forget() { trend_.forget(); }

    // A plan that has fallen may be tried again: the loss has a trend without it, or nobody tells.
    bool settled() const { return !told_ || trend_.settled(); }
    // Of the plan in force, else of the latest.
    LateStretch stretch() const { return stretch_; }

private:
    struct Round {
        std::size_t ranks = 0;
        std::size_t known = 0;
        double loss = 0;  // sum
        double rate = 0;
        bool late = false;
    };
    void begin_again();
    std::string end_round(std::uint64_t iteration, const Round& round);
    std::string judge_norm(const Training& training);

    const std::size_t reporters_;
    const int own_;
    double merge_ = 1;
    double amplification_ = 1;
    bool told_ = false;  // a loss
    bool late_ = false;  // the latest iteration was
    LossTrend trend_;
    std::map<std::uint64_t, Round> rounds_;
    std::uint64_t ended_ = 0;    // rounds below that
    std::uint64_t next_ = 0;     // iteration of this rank's, at the least: its own come in order
    std::deque<double> before_;  // norms of synchronous iterations
    std::deque<double> norms_;   // and of the first under a plan
    std::uint32_t since_ = 0;    // norms under it
    LateStretch stretch_;
};

}  // namespace deft::guard
