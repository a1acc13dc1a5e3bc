// SPDX-License-Identifier: Apache-2.0
// Whether the losses under a plan that delays or merges leave the trend that the same training had
// while it was synchronous. Pure: no clock, no threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace deft::guard {

// Every loss of a training in its order: that of iterations which nothing late had touched yet, and
// that of the others. The former make the trend: where the loss was in the end, how much it
// scatters from iteration to iteration, whether it fell. The latter are compared with it.
class LossTrend {
public:
    // Synchronous losses that the trend is made of, at most; with fewer than the second nothing is
    // judged.
    static constexpr std::size_t kBaseline = 48;
    static constexpr std::size_t kLeast = 16;

    // Of an iteration before which nothing was late. `rate`: the learning rate, NaN where it is not
    // known. An infinite loss stands for one that is not finite.
    void synchronous(double loss, double rate);
    // Of one under a plan. Why the plan must end, for people; "": it need not. The same is said
    // again only when the losses have been as expected meanwhile.
    std::string late(double loss, double rate);
    // The plan has been ended for what its losses did: only losses from here on make a trend.
    void forget();

    // There is a trend to compare with, and it does not rise.
    bool settled() const;
    // Under a plan it goes on to fall.
    bool falls() const;
    // Where the loss is expected to be, at most, and the mean of the latest. NaN: not known.
    double expected() const;
    double latest() const;

private:
    // Of losses with the rate that they were seen at.
    struct Level {
        double rate;
        double loss;
    };
    void begin();
    void note_level(double rate, double loss);
    void follow_rate(double rate);
    bool rises(double loss);
    void follow(double loss, double rate);
    bool turned() const;

    std::deque<double> synchronous_;
    std::deque<double> rates_;  // of those
    std::uint64_t seen_ = 0;    // of those, since the latest plan
    bool spoiled_ = false;      // one of them was not finite
    bool under_plan_ = false;

    bool known_ = false;         // the trend
    double level_ = 0;           // where the loss is expected, at most
    double rate_ = 0;            // at which it was there
    double spread_ = 0;          // standard deviation
    double at_switch_ = 0;       // spread_, as it was
    bool said_ = false;          // that the plan must end
    bool fell_ = false;          // the synchronous loss did, clearly
    double before_ = 0;          // mean of the last synchronous losses
    double sum_ = 0;             // of excess, in spreads
    double previous_ = 0;        // loss
    std::uint64_t under_ = 0;    // losses of the plan
    std::deque<double> latest_;  // of them
    std::vector<Level> levels_;  // the highest seen, falling with the rate
};

}  // namespace deft::guard
