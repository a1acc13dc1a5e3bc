// SPDX-License-Identifier: Apache-2.0
#include "shim/tuning/race.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace deft::tuning {
namespace {

using Times = std::vector<std::uint64_t>;

constexpr double kFaster = 0.97;
constexpr double kAboutAsFast = 1.01;
constexpr double kFarSlower = 1.5;
constexpr std::size_t kFewest = 4;  // times, of a candidate that is judged
constexpr unsigned kMostParts = 4;

double median_of(Times times) {
    if (times.size() < kFewest) {
        return 0;
    }
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return static_cast<double>(*middle) * 1e-6;
}

// Mann and Whitney's test in its normal form. Of two candidates that are alike one passes for the
// shorter in 1 of 160 tests. Of five times each, all of the one have to be below all of the other.
bool clearly_shorter(const Times& shorter, const Times& longer) {
    constexpr double kDeviations = 2.5;
    double below = 0;
    for (const std::uint64_t time : shorter) {
        for (const std::uint64_t other : longer) {
            below += time < other ? 1 : time == other ? 0.5 : 0;
        }
    }
    const auto n = static_cast<double>(shorter.size());
    const auto m = static_cast<double>(longer.size());
    return below - n * m / 2 > kDeviations * std::sqrt(n * m * (n + m + 1) / 12);
}

}  // namespace

Race::Race(const std::vector<CollectiveChoice>& candidates) {
    for (const CollectiveChoice& choice : candidates) {
        runners_.push_back({choice, {}, 0});
    }
}

bool Race::same_way(const Runner& runner) const {
    const CollectiveChoice& first = runners_.front().choice;
    return runner.choice.algorithm == first.algorithm && runner.choice.protocol == first.protocol;
}

// It seems so, and may be clear.
bool Race::faster(const Runner& runner) const {
    return runner.median_ms > 0 && runner.median_ms < kFaster * runners_.front().median_ms;
}

void Race::sort_in(const Times& times, std::size_t from) {
    const std::size_t count = runners_.size();
    for (std::size_t i = from; i < times.size(); ++i) {
        if (times[i] != 0) {
            const auto sample = static_cast<std::uint32_t>(i);
            runners_[Table::candidate_of(sample, count)].times.push_back(times[i]);
        }
    }
    for (Runner& runner : runners_) {
        runner.median_ms = median_of(runner.times);
    }
}

// The shortest time counts, of any round. Where a candidate's is missing, the next part tells.
void Race::look(const Times& times) {
    ++parts_;
    const std::size_t count = runners_.size();
    Times shortest(count, 0);
    for (std::size_t i = 0; i < times.size(); ++i) {
        std::uint64_t& least = shortest[Table::candidate_of(static_cast<std::uint32_t>(i), count)];
        if (times[i] != 0 && (least == 0 || times[i] < least)) {
            least = times[i];
        }
    }
    sort_in(times, count);
    const double most = kFarSlower * static_cast<double>(shortest.front());
    std::vector<Runner> left{std::move(runners_.front())};
    for (std::size_t i = 1; i < count; ++i) {
        // Where the first one has no time, the job does not make the call any more.
        if (shortest.front() != 0 && static_cast<double>(shortest[i]) <= most) {
            left.push_back(std::move(runners_[i]));
        }
    }
    runners_ = std::move(left);
}

void Race::take(const Times& times) {
    ++parts_;
    sort_in(times, 0);
    const Runner first = runners_.front();
    std::erase_if(runners_, [&first](const Runner& runner) {
        return first.median_ms > 0 && runner.median_ms > kAboutAsFast * first.median_ms &&
               clearly_shorter(first.times, runner.times);
    });
}

// Only a way that seems to be faster is worth more calls.
bool Race::open() const {
    if (parts_ < 2 || runners_.size() == 1) {
        return runners_.size() > 1;
    }
    return parts_ < kMostParts &&
           std::any_of(runners_.begin(), runners_.end(), [this](const Runner& runner) {
               return !same_way(runner) && faster(runner) &&
                      !clearly_shorter(runner.times, runners_.front().times);
           });
}

std::vector<CollectiveChoice> Race::choices() const {
    std::vector<CollectiveChoice> choices;
    for (const Runner& runner : runners_) {
        choices.push_back(runner.choice);
    }
    return choices;
}

Race::Verdict Race::verdict() const {
    const Runner& first = runners_.front();
    if (runners_.size() == 1 && first.median_ms == 0 && !first.times.empty()) {
        const double only = static_cast<double>(first.times.front()) * 1e-6;  // of a look alone
        return {first.choice, only, only};
    }
    Verdict verdict{first.choice, first.median_ms, first.median_ms};
    double least = first.median_ms;
    for (const Runner& runner : runners_) {
        const bool counts = same_way(runner) && runner.median_ms > 0;
        least = counts ? std::min(least, runner.median_ms) : least;
    }
    for (const Runner& runner : runners_) {
        const double median = runner.median_ms;
        if (same_way(runner) && median > 0 && median <= kAboutAsFast * least) {
            verdict.choice = runner.choice;
            verdict.chosen_ms = median;
        }
    }
    for (const Runner& runner : runners_) {
        if (!same_way(runner) && faster(runner) && runner.median_ms < verdict.chosen_ms &&
            clearly_shorter(runner.times, first.times)) {
            verdict.choice = runner.choice;
            verdict.chosen_ms = runner.median_ms;
        }
    }
    return verdict;
}

}  // namespace deft::tuning
