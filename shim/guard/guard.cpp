// SPDX-License-Identifier: Apache-2.0
#include "shim/guard/guard.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "planner/model/progress.h"

namespace deft::guard {
namespace {

constexpr std::uint64_t kMagic = 0x3164726175670002ULL;  // with the version of the layout
constexpr std::size_t kMostRounds = 8;                   // that wait for a rank which is slow
constexpr std::uint32_t kHighInARow = 2;
constexpr std::uint32_t kLowInARow = 4;
constexpr std::size_t kEnough = 5;  // norms for a median
// Before there are so many: times the limit, against the smallest norm so far.
constexpr double kEarly = 2;
constexpr std::uint64_t kSwitching = 20;  // iterations in which an agreed switch has happened

double median(std::deque<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

const char* to_string(Action action) {
    switch (action) {
        case Action::Keep:
            return "keep";
        case Action::Tighten:
            return "tighten";
        case Action::FallBack:
            return "fall back";
        case Action::Resume:
            return "resume";
    }
    return "?";
}

std::array<std::byte, kReportBytes> encode(const Statistics& s) {
    std::array<std::byte, kReportBytes> bytes{};
    const std::uint64_t flags = s.complete ? 1 : 0;
    const std::uint64_t words[] = {kMagic + (flags << 8), s.iteration, s.bytes, s.not_finite};
    // Cosines as numbers that are not negative, as all others.
    const double numbers[] = {s.local_square, s.reduced_square, s.merged, s.cosine_before + 1,
                              s.cosine_earlier + 1};
    static_assert(sizeof(words) + sizeof(numbers) == kReportBytes);
    std::memcpy(bytes.data(), words, sizeof(words));
    std::memcpy(bytes.data() + sizeof(words), numbers, sizeof(numbers));
    return bytes;
}

bool decode(std::span<const std::byte> bytes, Statistics& statistics) {
    std::uint64_t words[4];
    double numbers[5];
    if (bytes.size() != kReportBytes) {
        return false;
    }
    std::memcpy(words, bytes.data(), sizeof(words));
    std::memcpy(numbers, bytes.data() + sizeof(words), sizeof(numbers));
    if ((words[0] & ~0x100ULL) != kMagic) {
        return false;
    }
    for (const double number : numbers) {
        if (!(number >= 0)) {
            return false;  // NaN too
        }
    }
    for (const double number : {numbers[3], numbers[4]}) {
        if (number > 2 && number != executor::kNoCosine + 1) {
            return false;
        }
    }
    statistics = {words[1],      (words[0] & 0x100) != 0,   numbers[0], numbers[1],
                  words[2],      std::max(numbers[2], 1.0), words[3],   numbers[3] - 1,
                  numbers[4] - 1};
    return true;
}

Noise noise_of(double local_square, double reduced_square, int ranks, double merged) {
    if (ranks < 2 || merged <= 0) {
        return {reduced_square, 0};
    }
    // The sum G has E|G|^2 = n^2 |g|^2 + n v, a rank's own contribution |g|^2 + v.
    const double n = ranks;
    const double variance = std::max(0.0, (n * n * local_square - reduced_square) / (n * n - n));
    const double signal = std::max(0.0, reduced_square - n * variance);
    // A sum of k iterations has k times the mean and k times the variance of one.
    return {signal / (merged * merged), n * variance / merged};
}

Guard::Guard(const Settings& settings, int ranks, int own)
    : settings_(settings),
      ranks_(ranks),
      own_(own),
      reporters_([=] {
          std::size_t count = 0;
          for (int rank = 0; rank < ranks; ++rank) {
              count += rank == own || reports(rank, ranks) ? 1 : 0;
          }
          return count;
      }()),
      watch_(reporters_, own) {}

void Guard::note(int rank, const Training& training) {
    if (settings_.mode == Mode::Off || rank < 0 || rank >= ranks_) {
        return;
    }
    if (std::string why = watch_.note(rank, training); !why.empty()) {
        alarm_ = std::move(why);
    }
}

void Guard::plan_in_force(const planner::Plan& plan, std::uint64_t iteration) {
    plan_ = plan;
    delay_ = 0;
    merge_ = 1;
    for (const planner::Delivery& d : plan.deliveries) {
        delay_ = std::max(delay_, d.delay());
        merge_ = std::max(merge_, d.generation.count);
    }
    const bool synchronous = delay_ == 0 && merge_ == 1;
    watch_.plan(merge_, amplification_);
    if (!fallen()) {
        state_ = synchronous ? State::Synchronous : State::Watching;
    } else if (synchronous) {
        fallen_at_ = iteration;
    }
    rounds_.clear();
    alarm_.clear();
    high_ = 0;
    low_ = 0;
    measured_ = 0;
    at_switch_ = 0;
    norms_.clear();  // sums of another number of gradients have another norm
    noises_.clear();
    cosines_.clear();
}

void Guard::report(int rank, const Statistics& statistics) {
    if (settings_.mode == Mode::Off || rank < 0 || rank >= ranks_) {
        return;
    }
    if (statistics.not_finite > 0 || !std::isfinite(statistics.reduced_square)) {
        char text[96];
        std::snprintf(text, sizeof(text),
                      "%llu values that are not finite in the sums of iteration %llu",
                      static_cast<unsigned long long>(statistics.not_finite),
                      static_cast<unsigned long long>(statistics.iteration));
        alarm_ = text;
        return;
    }
    const bool complete = statistics.complete && statistics.bytes > 0;
    if (rank == own_) {  // equal on all ranks
        judge_swing(statistics);
        if (complete) {
            ++seen_;
            // Of one gradient: the first sums of a plan may hold fewer than those that follow.
            judge_norm(
                std::sqrt(statistics.reduced_square / static_cast<double>(statistics.bytes)) /
                    statistics.merged,
                statistics.iteration);
        }
    }
    if (!complete) {
        return;
    }
    Round& round = rounds_[statistics.iteration];
    round.local[rank] = statistics.local_square;
    round.reduced = statistics;  // equal on all ranks
    if (round.local.size() == reporters_) {
        end_round(statistics.iteration);
    } else if (rounds_.size() > kMostRounds) {
        end_round(rounds_.begin()->first);
    }
}

// All have reported, or those that have not are not waited for: most of them say enough.
void Guard::end_round(std::uint64_t iteration) {
    const auto round = rounds_.find(iteration);
    if (round->second.local.size() * 2 > reporters_) {
        judge_noise(round->second);
    }
    rounds_.erase(rounds_.begin(), std::next(round));
}

void Guard::judge_noise(const Round& round) {
    double local = 0;
    for (const auto& [rank, square] : round.local) {
        local += square / static_cast<double>(round.local.size());
    }
    noises_.push_back(noise_of(local, round.reduced.reduced_square, ranks_, round.reduced.merged));
    if (noises_.size() > settings_.window) {
        noises_.pop_front();
    }
    // Numerator and denominator are averaged apart: their quotient is far too noisy for a mean.
    noise_ = {};
    for (const Noise& one : noises_) {
        noise_.mean_square += one.mean_square / static_cast<double>(noises_.size());
        noise_.noise_square += one.noise_square / static_cast<double>(noises_.size());
    }
}

void Guard::judge_norm(double rms, std::uint64_t iteration) {
    judge_collapse(rms, iteration);
    const bool enough = norms_.size() >= kEnough;
    const double usual = enough           ? median(norms_)
                         : norms_.empty() ? rms
                                          : *std::min_element(norms_.begin(), norms_.end());
    const double limit = settings_.growth * (enough ? 1 : kEarly);
    high_ = rms > limit * usual ? high_ + 1 : 0;
    if (high_ >= kHighInARow) {
        char text[128];
        std::snprintf(text, sizeof(text),
                      "the norm of the reduced gradients grew to %.1f times its %s at "
                      "iteration %llu",
                      rms / std::max(usual, 1e-300), enough ? "median" : "first value",
                      static_cast<unsigned long long>(iteration));
        alarm_ = text;
    }
    if (high_ == 0) {  // what is under suspicion does not become usual
        norms_.push_back(rms);
        if (norms_.size() > settings_.window) {
            norms_.pop_front();
        }
    }
}

void Guard::judge_collapse(double rms, std::uint64_t iteration) {
    ++measured_;
    if (measured_ <= 2) {
        at_switch_ = std::max(at_switch_, rms);
    }
    const bool low = measured_ <= settings_.collapse_soon && rms * settings_.collapse < at_switch_;
    low_ = low ? low_ + 1 : 0;
    if (low_ == kLowInARow) {
        char text[160];
        std::snprintf(text, sizeof(text),
                      "the norm of the reduced gradients collapsed to 1/%.0f of what it was at the "
                      "switch, at iteration %llu: the training may have diverged",
                      at_switch_ / std::max(rms, 1e-300),
                      static_cast<unsigned long long>(iteration));
        alarm_ = text;
    }
}

// A delay makes an optimizer with momentum overshoot: it goes on where it should have turned, and
// comes back too late as well. Its gradients then point the same way for several updates and no
// longer so some updates later, while their norms look as they did. A smooth descent points the
// same way for long; noise, and a training at the edge of its learning rate, change direction at
// once.
void Guard::judge_swing(const Statistics& statistics) {
    if (statistics.cosine_before > 1 || statistics.cosine_earlier > 1) {
        return;
    }
    cosines_.push_back({statistics.cosine_before, statistics.cosine_earlier});
    if (cosines_.size() < settings_.swing_window) {
        return;
    }
    double before = 0;
    double earlier = 0;
    for (const auto& [one, other] : cosines_) {
        before += one / static_cast<double>(cosines_.size());
        earlier += other / static_cast<double>(cosines_.size());
    }
    cosines_.pop_front();
    const bool low = merge_ > 1 || settings_.heavy_ball;
    if (before <= (low ? settings_.swing_low : settings_.swing) ||
        earlier >= settings_.swing_earlier) {
        return;
    }
    cosines_.clear();  // judged; measure again
    char text[160];
    std::snprintf(text, sizeof(text),
                  "the training swings: successive sums have cosines of %.2f, those six updates "
                  "apart of %.2f, up to iteration %llu",
                  before, earlier, static_cast<unsigned long long>(statistics.iteration));
    alarm_ = text;
}

std::optional<std::string> Guard::progress_problem() const {
    const planner::Prediction& p = plan_.predicted;
    if (!settings_.merging_priced || merge_ <= 1 || p.baseline <= 0 ||
        noises_.size() < settings_.least || noise_.mean_square <= 0) {
        return std::nullopt;
    }
    planner::Options prices;
    prices.noise_scale = noise_.scale();
    prices.age_price = 0;  // what lateness costs was counted when the plan was chosen
    const double worth = planner::progress_per_iteration(plan_, prices);
    if (p.iteration <= settings_.dearer * worth * p.baseline) {
        return std::nullopt;
    }
    char text[192];
    std::snprintf(text, sizeof(text),
                  "merged updates progress too little: an iteration is worth %.2f synchronous ones "
                  "and takes %.2f of their time (noise scale %.2g)",
                  worth, p.iteration / p.baseline, noise_.scale());
    return std::string(text);
}

Decision Guard::make(Action action, std::uint32_t delay, std::uint32_t merge,
                     std::uint64_t iteration, std::string reason) {
    ++decisions_;
    return {action, delay, merge, iteration, strict(), std::move(reason)};
}

void Guard::fall(std::uint64_t iteration) {
    ++falls_;
    hold_ = std::uint64_t{settings_.hold} << std::min(falls_ - 1, 20U);
    fallen_at_ = iteration;
    decided_at_ = iteration;
    state_ = falls_ > settings_.most_falls ? State::GivenUp : State::Fallen;
    watch_.forget();
}

void Guard::lapsed(std::uint64_t iteration) {
    if (strict() && !fallen()) {
        ++decisions_;
        fall(iteration);
    }
}

Decision Guard::tightened_in_vain(std::uint64_t iteration) {
    if (strict()) {
        fall(iteration);
    }
    return make(Action::FallBack, 0, 1, iteration, "no plan that merges or delays less came of it");
}

Decision Guard::decide(std::uint64_t iteration) {
    Decision keep{Action::Keep, delay_, merge_, iteration, false, ""};
    if (settings_.mode == Mode::Off) {
        return keep;
    }
    if (fallen() && !alarm_.empty()) {
        // Reports come from delayed plans only: from the last moments of the one that fell, or from
        // one that is still in force because the switch did not come about.
        const std::string reason = std::exchange(alarm_, "");
        if (iteration < fallen_at_ + kSwitching) {
            return keep;
        }
        fallen_at_ = iteration;
        return make(Action::FallBack, 0, 1, iteration, reason);
    }
    if (state_ == State::Fallen && iteration >= fallen_at_ + hold_ && iteration > fallen_at_ &&
        watch_.settled()) {
        state_ = State::Resumed;
        return make(Action::Resume, 0, 1, iteration,
                    "synchronous for " + std::to_string(iteration - fallen_at_) + " iterations");
    }
    if (state_ != State::Watching && state_ != State::Tightening) {
        return keep;
    }
    if (!alarm_.empty()) {
        const std::string reason = std::exchange(alarm_, "");
        high_ = 0;
        if (strict()) {
            fall(iteration);
        }
        return make(Action::FallBack, 0, 1, iteration, reason);
    }
    if (state_ == State::Tightening) {
        return keep;
    }
    if (const auto problem = progress_problem()) {
        noises_.clear();  // judged; measure again
        return tighten(iteration, *problem);
    }
    return keep;
}

// Merging costs progress, so it goes first; then the delay.
Decision Guard::tighten(std::uint64_t iteration, const std::string& problem) {
    const std::uint32_t delay = merge_ > 1 ? delay_ : delay_ - 1;
    const std::uint32_t merge = merge_ > 1 ? merge_ - 1 : 1;
    const bool less = delay > 0 || merge > 1;
    if (strict() && less) {
        state_ = State::Tightening;
    } else if (strict()) {
        fall(iteration);
    }
    return make(less ? Action::Tighten : Action::FallBack, delay, merge, iteration, problem);
}

}  // namespace deft::guard
