// SPDX-License-Identifier: Apache-2.0
#include "shim/guard/training_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace deft::guard {
namespace {

// Iterations that wait for a rank which is slow. Ranks report at each look of their background
// threads, and a look may be held up: short iterations come many at a time.
constexpr std::size_t kMostRounds = 64;
// Norms before a switch that are compared with, and the fewest.
constexpr std::size_t kNormsBefore = 16;
constexpr std::size_t kLeastBefore = 8;
// Of the first so many under a plan, the middle one of five must not be twice as large.
constexpr std::uint32_t kNormsAtSwitch = 20;
constexpr std::size_t kNorms = 5;
constexpr double kDoubled = 2;

double median(std::deque<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

std::string TrainingWatch::note(int rank, const Training& training) {
    std::string why;
    if (rank == own_) {
        if (training.iteration < next_) {
            begin_again();
        }
        next_ = training.iteration + 1;
        why = judge_norm(training);
    }
    if (training.iteration < ended_) {
        return why;
    }
    Round& round = rounds_[training.iteration];
    ++round.ranks;
    round.late = round.late || training.late;
    if (!std::isnan(training.loss)) {
        ++round.known;
        round.loss += training.loss;
    }
    round.rate = rank == own_ || round.ranks == 1 ? training.rate : round.rate;
    // In their order; those that have not told are not waited for.
    while (!rounds_.empty() &&
           (rounds_.begin()->second.ranks >= reporters_ || rounds_.size() > kMostRounds)) {
        const auto first = rounds_.begin();
        ended_ = first->first + 1;
        if (std::string of_loss = end_round(first->first, first->second); !of_loss.empty()) {
            why = std::move(of_loss);
        }
        rounds_.erase(first);
    }
    return why;
}

// Another module of the job's has taken the place of the one before, and counts from 0.
void TrainingWatch::begin_again() {
    rounds_.clear();
    ended_ = 0;
    trend_ = {};
    before_.clear();
    norms_.clear();
    since_ = 0;
    told_ = late_ = false;
    stretch_ = {};
}

std::string TrainingWatch::end_round(std::uint64_t iteration, const Round& round) {
    if (round.late && !late_) {
        stretch_ = {};
        stretch_.from = iteration;
    }
    stretch_.to = round.late ? iteration : stretch_.to;
    late_ = round.late;
    // Each rank has samples of its own: of fewer the mean is another.
    if (round.known == 0 || round.known * 2 <= reporters_ || round.known < round.ranks) {
        return "";
    }
    told_ = true;
    const double loss = round.loss / static_cast<double>(round.known);
    if (!round.late) {
        trend_.synchronous(loss, round.rate);
        return "";
    }
    std::string why = trend_.late(loss, round.rate);
    stretch_.seen = trend_.latest();
    if (!std::isnan(trend_.expected())) {  // else the plan has been ended, and is not judged
        stretch_.expected = trend_.expected();
    }
    if (!why.empty()) {
        why += " (iteration " + std::to_string(iteration) + " of the training, " +
               std::to_string(iteration - stretch_.from + 1) + " after the plan began)";
    }
    return why;
}

// What a plan delivers is compared with what the job summed before. An extrapolated sum of noise is
// larger than the noise, and merged sums are larger than one.
std::string TrainingWatch::judge_norm(const Training& training) {
    if (!training.late) {
        since_ = 0;
        norms_.clear();
        if (training.norm > 0 && std::isfinite(training.norm)) {
            before_.push_back(training.norm);
        }
        if (before_.size() > kNormsBefore) {
            before_.pop_front();
        }
        return "";
    }
    if (!(training.norm > 0) || before_.size() < kLeastBefore || since_ >= kNormsAtSwitch) {
        return "";  // nothing was delivered, or nothing is known
    }
    ++since_;
    norms_.push_back(training.norm / merge_);
    if (norms_.size() > kNorms) {
        norms_.pop_front();
    }
    const double was = median(before_);
    const double most = *std::max_element(before_.begin(), before_.end());
    const double now = median(norms_);
    if (norms_.size() < kNorms || now < kDoubled * amplification_ * was || now < most) {
        return "";
    }
    if (trend_.falls()) {
        return "";  // a training that leaves a plateau has growing gradients as well
    }
    since_ = kNormsAtSwitch;
    char text[128];
    std::snprintf(text, sizeof(text),
                  "the norm of what updates get is %.1f times what it was before the plan, at "
                  "iteration %llu of the training",
                  now / was, static_cast<unsigned long long>(training.iteration));
    return text;
}

}  // namespace deft::guard
