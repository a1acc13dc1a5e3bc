// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/rate.h"

#include <algorithm>

namespace deft::net {
namespace {

// A stretch is measured once it is this long and carried this much: shorter ones see the token
// bucket of a shaper or one scheduling hiccup instead of the link.
constexpr Nanos kStretch = 5 * kMillisecond;
constexpr std::uint64_t kStretchBytes = 128 * 1024;
constexpr Nanos kMemory = 40 * kMillisecond;  // a stretch this long counts half
constexpr Nanos kAgeAfter = 200 * kMillisecond;
constexpr Nanos kProbeLasts = 15 * kSecond;
constexpr double kSlowest = 10e3;
constexpr double kFastest = 1e12;

}  // namespace

void RateEstimator::reset(double bytes_per_second, Nanos latency) {
    *this = RateEstimator{};
    rate_ = std::clamp(bytes_per_second, kSlowest, kFastest);
    first_guess_ = rate_;
    latency_ = std::clamp<Nanos>(latency, kMicrosecond, kSecond);
}

void RateEstimator::posted(std::uint64_t bytes, Nanos now) {
    if (outstanding_ == 0) {
        stretch_start_ = now;
        stretch_bytes_ = 0;
        started_idle_ = true;
    }
    outstanding_ += bytes;
}

void RateEstimator::acknowledged(std::uint64_t bytes, Nanos posted_at, Nanos now) {
    outstanding_ -= std::min(bytes, outstanding_);
    stretch_bytes_ += bytes;
    latency_ = std::max(kMicrosecond, std::min(latency_, now - posted_at));
    const Nanos elapsed = now - stretch_start_ - (started_idle_ ? latency_ : 0);
    const bool long_enough = elapsed >= kStretch && stretch_bytes_ >= kStretchBytes;
    if (long_enough || (outstanding_ == 0 && stretch_bytes_ >= kStretchBytes && elapsed > 0)) {
        sample(stretch_bytes_, elapsed, now);
    }
    if (long_enough) {
        stretch_start_ = now;
        stretch_bytes_ = 0;
        started_idle_ = false;
    }
}

// TCP begins slowly: it may well be twice as fast.
void RateEstimator::probed(std::uint64_t bytes, Nanos elapsed, Nanos now) {
    if (samples_ == 0) {
        const double seen =
            2 * static_cast<double>(bytes) * 1e9 / static_cast<double>(std::max<Nanos>(elapsed, 1));
        rate_ = std::clamp(seen, kSlowest, rate_);
        last_sample_ = now;
    }
}

void RateEstimator::forget(Nanos now) {
    outstanding_ = 0;
    stretch_bytes_ = 0;
    stretch_start_ = now;
    started_idle_ = true;
}

void RateEstimator::sample(std::uint64_t bytes, Nanos elapsed, Nanos now) {
    const double measured = static_cast<double>(bytes) * 1e9 / static_cast<double>(elapsed);
    double weight = std::min(0.5, static_cast<double>(elapsed) / static_cast<double>(kMemory) / 2);
    if (samples_ < 4) {
        weight = std::max(weight, 1.0 / (samples_ + 1));
    }
    rate_ = std::clamp(rate_ + weight * (measured - rate_), kSlowest, kFastest);
    samples_ += samples_ < 1000 ? 1 : 0;
    last_sample_ = now;
}

void RateEstimator::age(Nanos now) {
    // One slow piece may have met a crowd. Then nothing has been sent here since.
    if (samples_ == 0 && last_sample_ > 0 && now - last_sample_ >= kProbeLasts) {
        rate_ = first_guess_;
        last_sample_ = 0;
    }
    if (samples_ > 0 && now - last_sample_ >= kAgeAfter && rate_ < first_guess_) {
        rate_ = std::min(first_guess_, rate_ * 1.2);
        last_sample_ = now;
    }
}

}  // namespace deft::net
