// SPDX-License-Identifier: Apache-2.0
#include "shim/guard/loss_trend.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

namespace deft::guard {
namespace {

constexpr std::size_t kFew = 4;
// Where the loss was in the end: the mean of so many.
constexpr std::size_t kEnd = 12;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// A sum of what lies above the expected level, in standard deviations, less the first for each
// loss; more than the second counts of none, so that a single one says nothing (Page's cumulative
// sum, Biometrika 41, 1954). The third is where it is an alarm. Three losses that are five
// deviations too high reach it, and six that are three.
constexpr double kDrift = 1.25;
constexpr double kMost = 5;
constexpr double kAlarm = 10;
// A training without noise scatters by nothing, and no trend is a law: part of the level.
constexpr double kLeastSpread = 0.02;
// The expected level follows the mean of so many losses down, and lies by part of a deviation above
// it: the smallest of many means is a small one.
constexpr std::size_t kFollowed = 32;
constexpr double kAbove = 0.5;
// The spread follows the losses slowly, and not far: a training that begins to swing is no trend.
constexpr double kSpreadWeight = 0.03;
constexpr double kSpreadLeast = 0.5;
constexpr double kSpreadMost = 1.5;
// A rate that is higher by so much raises the loss for a while, with a plan or without.
constexpr double kHigherRate = 1.2;
constexpr double kSameRate = 0.9;
constexpr std::size_t kMostLevels = 64;
// A loss that fell clearly over so many, and after the switch has risen instead.
constexpr std::size_t kWindow = 16;
constexpr std::uint64_t kTurnedAt = 20;
constexpr std::size_t kLast = 6;  // with few of a loss that falls, its end is known best
constexpr double kClearly = 5;    // standard errors
constexpr double kRisen = 2;

template <class It>
double mean(It begin, It end) {
    double sum = 0;
    for (It each = begin; each != end; ++each) {
        sum += *each;
    }
    return sum / static_cast<double>(end - begin);
}

double mean_of_last(const std::deque<double>& values, std::size_t count) {
    return mean(values.end() - static_cast<std::ptrdiff_t>(std::min(count, values.size())),
                values.end());
}

// From one loss to the next, so that a trend does not count.
double spread_of(const std::deque<double>& losses) {
    double sum = 0;
    for (std::size_t i = 1; i < losses.size(); ++i) {
        sum += (losses[i] - losses[i - 1]) * (losses[i] - losses[i - 1]) / 2;
    }
    return losses.size() < 2 ? 0 : std::sqrt(sum / static_cast<double>(losses.size() - 1));
}

}  // namespace

void LossTrend::synchronous(double loss, double rate) {
    if (under_plan_) {
        under_plan_ = false;
        seen_ = 0;
        spoiled_ = false;
        synchronous_.clear();
        rates_.clear();
    }
    if (!std::isfinite(loss)) {
        spoiled_ = true;
        return;
    }
    ++seen_;
    synchronous_.push_back(loss);
    rates_.push_back(rate);
    if (synchronous_.size() > kBaseline) {
        synchronous_.pop_front();
        rates_.pop_front();
    }
    if (synchronous_.size() >= kLeast && seen_ % 4 == 0) {
        note_level(mean_of_last(rates_, kEnd), mean_of_last(synchronous_, kEnd));
    }
}

void LossTrend::forget() {
    known_ = false;
    synchronous_.clear();
    rates_.clear();
    seen_ = 0;
    sum_ = 0;
}

// Of each rate the highest level that the training had at it or at a higher one.
void LossTrend::note_level(double rate, double loss) {
    if (std::isnan(rate)) {
        return;
    }
    const auto known = std::find_if(levels_.begin(), levels_.end(), [rate](const Level& level) {
        return rate <= level.rate * 1.02 && rate >= level.rate * 0.98;
    });
    if (known != levels_.end()) {
        known->loss = std::max(known->loss, loss);
    } else if (levels_.size() < kMostLevels) {
        levels_.push_back({rate, loss});
    }
}

// The first loss of a plan.
void LossTrend::begin() {
    under_plan_ = true;
    said_ = false;
    under_ = 0;
    sum_ = 0;
    latest_.clear();
    if (synchronous_.size() < kLeast) {
        fell_ = false;
        return;  // the plan has been away for a moment: the trend of before holds, if there is one
    }
    known_ = true;
    level_ = mean_of_last(synchronous_, kEnd);
    before_ = mean_of_last(synchronous_, kLast);
    rate_ = mean_of_last(rates_, kEnd);
    spread_ = at_switch_ =
        std::max(spread_of(synchronous_), kLeastSpread * std::abs(level_) + 1e-12);
    previous_ = synchronous_.back();
    fell_ = false;
    if (synchronous_.size() >= 2 * kWindow) {
        const auto end = synchronous_.end() - static_cast<std::ptrdiff_t>(kWindow);
        const double earlier = mean(end - static_cast<std::ptrdiff_t>(kWindow), end);
        const double error = spread_ * std::sqrt(2.0 / kWindow);
        fell_ = earlier - mean(end, synchronous_.end()) > kClearly * error;
    }
}

// A schedule that starts again (warm restarts) raises the rate, and with it the loss: what the
// training had at such a rate before is no alarm. At a rate that it never had, nothing excuses it.
void LossTrend::follow_rate(double rate) {
    if (!(rate > kHigherRate * rate_)) {
        return;
    }
    double highest = -std::numeric_limits<double>::infinity();
    for (const Level& level : levels_) {
        if (level.rate >= kSameRate * rate) {
            highest = std::max(highest, level.loss);
        }
    }
    if (std::isfinite(highest)) {
        rate_ = rate;
        level_ = std::max(level_, highest);
        sum_ = 0;
        under_ = 0;
        fell_ = false;
        latest_.clear();
    }
}

bool LossTrend::rises(double loss) {
    sum_ = std::max(0.0, sum_ + std::min((loss - level_) / spread_, kMost) - kDrift);
    const bool risen = sum_ > kAlarm;
    sum_ = std::min(sum_, 2 * kAlarm);  // so that it comes back when the losses do
    said_ = said_ && sum_ > 0;
    return risen;
}

// Level and spread go down with the losses.
void LossTrend::follow(double loss, double rate) {
    if (sum_ < kAlarm / 2) {
        const double square = spread_ * spread_;
        const double step = (loss - previous_) * (loss - previous_) / 2;
        const double now =
            std::sqrt(square + kSpreadWeight * (std::min(step, 25 * square) - square));
        const double least =
            std::max(kSpreadLeast * at_switch_, kLeastSpread * std::abs(level_) + 1e-12);
        spread_ = std::max(least, std::min(now, kSpreadMost * at_switch_));
    }
    previous_ = loss;
    if (latest_.size() < kFollowed) {
        return;
    }
    const double now = mean_of_last(latest_, kFollowed);
    if (now + kAbove * spread_ < level_) {
        level_ = now + kAbove * spread_;
        rate_ = std::isnan(rate) ? rate_ : rate;
    }
    if (under_ % 4 == 0) {
        note_level(rate, now);
    }
}

bool LossTrend::turned() const {
    const double error = at_switch_ * std::sqrt(1.0 / kLast + 1.0 / kWindow);
    return fell_ && under_ == kTurnedAt &&
           mean_of_last(latest_, kWindow) > before_ + kRisen * error;
}

std::string LossTrend::late(double loss, double rate) {
    if (!under_plan_) {
        begin();
    }
    if (!std::isfinite(loss)) {
        return spoiled_ || std::exchange(said_, true) ? "" : "the loss is not finite";
    }
    ++under_;
    latest_.push_back(loss);
    if (latest_.size() > kFollowed) {
        latest_.pop_front();
    }
    if (!known_) {
        return "";
    }
    follow_rate(rate);
    char text[192];
    if (rises(loss)) {
        if (std::exchange(said_, true)) {
            return "";
        }
        std::snprintf(text, sizeof(text),
                      "the loss rose: %.4g where %.4g was expected, with a standard deviation of "
                      "%.2g from iteration to iteration",
                      latest(), level_, spread_);
        return text;
    }
    if (turned()) {
        std::snprintf(text, sizeof(text),
                      "the loss fell before the plan, to %.4g, and does not under it: %.4g",
                      before_, mean_of_last(latest_, kWindow));
        return text;
    }
    follow(loss, rate);
    return "";
}

bool LossTrend::settled() const {
    if (synchronous_.size() < 2 * kWindow || under_plan_) {
        return false;
    }
    const auto end = synchronous_.end() - static_cast<std::ptrdiff_t>(kWindow);
    const double earlier = mean(end - static_cast<std::ptrdiff_t>(kWindow), end);
    const double error = spread_of(synchronous_) * std::sqrt(2.0 / kWindow);
    return mean(end, synchronous_.end()) <= earlier + kRisen * error + 1e-12;
}

bool LossTrend::falls() const {
    return known_ && latest_.size() >= kFew && latest() < level_ - spread_ / 2;
}

double LossTrend::expected() const {
    return known_ ? level_ : kNaN;
}

double LossTrend::latest() const {
    return latest_.empty() ? kNaN : mean_of_last(latest_, kFew);
}

}  // namespace deft::guard
