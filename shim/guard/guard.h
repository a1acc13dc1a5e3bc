// SPDX-License-Identifier: Apache-2.0
// DeFT's Preserver: decides from measured gradients whether a delayed or merged plan may go on.
// Pure: no CUDA, no clock, no threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "planner/model/plan.h"
#include "shim/executor/statistics.h"
#include "shim/guard/training_watch.h"

namespace deft::guard {

using executor::Statistics;

enum class Mode : std::uint8_t {
    Strict,  // decisions are carried out
    Warn,    // and only said
    Off,
};

// Which ranks report to the one that decides. Their sums are equal, so one report tells of those;
// what a rank contributed differs, and the mean of some says as much as that of all. The one that
// decides always knows its own.
inline constexpr int kReporters = 64;
constexpr bool reports(int rank, int ranks) {
    return rank % ((ranks + kReporters - 1) / kReporters) == 0;
}

// What one rank reports to the one that decides.
inline constexpr std::size_t kReportBytes = 72;
std::array<std::byte, kReportBytes> encode(const Statistics& statistics);
// False for anything encode() did not make.
bool decode(std::span<const std::byte> bytes, Statistics& statistics);

struct Settings {
    Mode mode = Mode::Strict;
    bool merging_priced = true;  // a plan ends that takes longer to the same loss than none
    double dearer = 1.02;        // so many times
    double growth = 3;           // times the running median of the reduced norm
    // A network that has diverged and died has gradients that are small, finite and steady: so far
    // below those at the switch, this soon after it, no training gets.
    double collapse = 20;              // times smaller than at the switch
    std::uint32_t collapse_soon = 40;  // complete measurements after it
    // A training that swings to and fro: successive sums point the same way, those six updates
    // apart do not. Means of cosines over so many updates. The first is smaller of merged sums, and
    // under SGD with momentum: so it was seen of trainings that were ruined (docs/accuracy.md).
    double swing = 0.7;
    double swing_low = 0.6;
    double swing_earlier = 0.1;  // what decays by a constant share has more: 0.7^6 is 0.12
    std::uint32_t swing_window = 20;
    std::uint32_t window = 20;     // complete measurements in the median
    std::uint32_t least = 8;       // complete measurements before progress is judged
    std::uint32_t hold = 200;      // iterations of synchronous training before the plan resumes;
                                   // doubled at every fall
    std::uint32_t most_falls = 3;  // after that it stays synchronous
    bool heavy_ball = false;       // SGD with momentum, not Nesterov's
};

enum class Action : std::uint8_t {
    Keep,      // go on
    Tighten,   // plan again within `max_delay` and `max_merge`; the plan in force goes on meanwhile
    FallBack,  // synchronous from now on
    Resume,    // the plan may come back
};
const char* to_string(Action action);

struct Decision {
    Action action = Action::Keep;
    std::uint32_t max_delay = 0;
    std::uint32_t max_merge = 1;
    std::uint64_t iteration = 0;
    bool act = false;  // false: mode is warn; say it and go on
    std::string reason;
};

// Gradient noise from local and reduced norms (McCandlish et al., arXiv 1812.06162, appendix A.1):
// the contribution of one rank is a gradient of a small batch, the sum of all one of a big batch.
struct Noise {
    double mean_square = 0;   // squared norm of the true gradient, in the scale of the sum
    double noise_square = 0;  // variance of the sum, all elements
    // Batches of the job's size whose sum has as much noise as signal.
    double scale() const { return mean_square > 0 ? noise_square / mean_square : 0; }
};
// `local_square` is the mean over ranks; merged gradients are brought back to one iteration.
Noise noise_of(double local_square, double reduced_square, int ranks, double merged);

// Lives on the rank that decides. One thread.
class Guard {
public:
    // `own`: the rank that decides, whose reports tell what is equal on all ranks.
    Guard(const Settings& settings, int ranks, int own = 0);

    // Switched to: a plan, or (one without deliveries) forwarding, from which on a fall is counted
    // in iterations. A plan that comes although a fall has been decided does not undo that.
    void plan_in_force(const planner::Plan& plan, std::uint64_t iteration);
    // The job's optimizer is another than that in the settings.
    void optimizer(const Settings& now) { settings_.heavy_ball = now.heavy_ball; }
    // A report of one rank.
    void report(int rank, const Statistics& statistics);
    // What one rank's companion tells of an iteration, whether or not a plan is in force.
    void note(int rank, const Training& training);
    // By what prediction enlarges a gradient that is nothing but noise, under the plan in force.
    void amplification(double factor) { amplification_ = factor; }
    LateStretch stretch() const { return watch_.stretch(); }
    // Complete measurements of the sums that it has had: without new ones it is blind.
    std::uint64_t seen() const { return seen_; }
    // The plan has ended because a rank did not vouch for it: that is a fall.
    void lapsed(std::uint64_t iteration);
    // Once per iteration or so, whether or not there are reports: what to do now. A decision other
    // than Keep is made once; the next comes after plan_in_force() or, in mode warn, later. After
    // Tighten the plan in force may still have to fall. A fall is repeated if its cause is reported
    // again 20 iterations later: the switch did not succeed.
    Decision decide(std::uint64_t iteration);
    // Nothing comes of the plan that Tighten asked for: the one in force falls instead.
    Decision tightened_in_vain(std::uint64_t iteration);

    // What has been decided and holds until plan_in_force() or Resume: no plan at all, another one.
    bool fallen() const { return state_ == State::Fallen || state_ == State::GivenUp; }
    // fallen(), for so many iterations.
    std::uint64_t fallen_for(std::uint64_t iteration) const {
        return fallen() && iteration > decided_at_ ? iteration - decided_at_ : 0;
    }
    bool tightening() const { return state_ == State::Tightening; }

    const Noise& noise() const { return noise_; }
    std::uint32_t falls() const { return falls_; }
    std::uint64_t decisions() const { return decisions_; }

private:
    // Resumed: until the plan is back.
    enum class State : std::uint8_t { Synchronous, Watching, Tightening, Fallen, GivenUp, Resumed };
    struct Round {
        std::map<int, double> local;
        Statistics reduced;
    };
    void judge_norm(double rms, std::uint64_t iteration);
    void judge_collapse(double rms, std::uint64_t iteration);
    void judge_swing(const Statistics& statistics);
    void judge_noise(const Round& round);
    void end_round(std::uint64_t iteration);
    void fall(std::uint64_t iteration);
    Decision tighten(std::uint64_t iteration, const std::string& problem);
    // In mode warn the plan stays, and the same thing is said again only when it happens again.
    bool strict() const { return settings_.mode == Mode::Strict; }
    Decision make(Action action, std::uint32_t delay, std::uint32_t merge, std::uint64_t iteration,
                  std::string reason);
    std::optional<std::string> progress_problem() const;

    Settings settings_;
    const int ranks_;
    const int own_;
    const std::size_t reporters_;
    State state_ = State::Synchronous;
    planner::Plan plan_;
    std::uint32_t delay_ = 0;  // of the plan in force
    std::uint32_t merge_ = 1;
    std::uint64_t fallen_at_ = 0;
    std::uint64_t decided_at_ = 0;  // of the fall, however often it is repeated
    std::uint64_t hold_ = 0;
    std::uint32_t falls_ = 0;
    std::uint32_t high_ = 0;      // complete measurements in a row beyond the growth limit
    std::uint32_t low_ = 0;       // and so far below those at the switch
    std::uint32_t measured_ = 0;  // complete measurements since the switch
    double at_switch_ = 0;        // the larger norm of the first two
    std::uint64_t decisions_ = 0;
    std::uint64_t seen_ = 0;
    std::map<std::uint64_t, Round> rounds_;  // by iteration; few
    std::deque<double> norms_;               // root mean squares of complete measurements
    std::deque<Noise> noises_;
    std::deque<std::array<double, 2>> cosines_;  // with the update before, and six before
    Noise noise_;
    TrainingWatch watch_;
    double amplification_ = 1;
    std::string alarm_;  // why the plan must fall, found in a report
};

}  // namespace deft::guard
