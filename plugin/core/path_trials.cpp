// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/path_trials.h"

#include <algorithm>
#include <cmath>

namespace deft::net {
namespace {

constexpr Nanos kSettle = 40 * kMillisecond;  // what was on the way arrives, the others speed up
// A window is to see this much go by, within these limits: a few chunks more or less must not
// matter.
constexpr double kWindowBytes = 4e6;
constexpr Nanos kWindow = 60 * kMillisecond;
constexpr Nanos kMaxWindow = 500 * kMillisecond;
constexpr Nanos kFirstWait = 2 * kSecond;  // under load, before the first trial
constexpr Nanos kSoon = 300 * kMillisecond;
constexpr Nanos kUsefulWait = 30 * kSecond;
constexpr Nanos kMaxUsefulWait = 240 * kSecond;
constexpr Nanos kFirstBackOff = 8 * kSecond;
constexpr Nanos kMaxBackOff = 120 * kSecond;
constexpr Nanos kAway = 20 * kMillisecond;  // nobody drove the connection: no time of ours
// Under load: there is so much to send that more links would have something to do.
constexpr std::uint64_t kLoad = 256 * 1024;
constexpr double kMostOfAll = 0.6;   // a path that carries more is not doubted
constexpr double kSteady = 0.15;     // totals before and after may differ by this much
constexpr double kPartMissed = 0.3;  // a path is useless if less of its part is missed than this
constexpr int kRounds = 2;

}  // namespace

void PathTrials::enter(Phase phase, Nanos now, std::uint64_t delivered) {
    phase_ = phase;
    phase_start_ = now;
    phase_idle_ = 0;
    phase_delivered_ = delivered;
}

void PathTrials::give_up(Nanos wait) {
    phase_ = Phase::Watch;
    tried_ = 0;
    busy_ = 0;
    wait_ = wait;
    useless_rounds_ = 0;
    retrying_ = false;
}

bool PathTrials::tick(Nanos now, std::span<const Sample> paths, std::uint64_t backlog) {
    const Mask out_before = dropped_ | tried_;
    Mask up = 0;
    std::uint64_t delivered = 0;
    Nanos latency = 0;
    const std::size_t count = std::min(paths.size(), kMaxPaths);
    for (std::size_t i = 0; i < count; ++i) {
        up |= paths[i].up ? Mask{1} << i : 0;
        delivered += paths[i].delivered;
        latency = std::max(latency, paths[i].up ? paths[i].latency : 0);
    }
    const Nanos elapsed = now - last_tick_;
    last_tick_ = now;
    if (up != up_) {
        up_ = up;
        dropped_ = tested_ = 0;
        back_off_.fill(0);
        useful_wait_ = kUsefulWait;
        give_up(kFirstWait);
        for (std::size_t i = 0; i < count; ++i) {
            seen_[i] = paths[i].delivered;
        }
    }
    if ((up & (up - 1)) == 0) {
        return (dropped_ | tried_) != out_before;
    }
    const bool loaded = backlog >= kLoad && elapsed < kAway;
    (loaded ? busy_ : phase_idle_) += elapsed;
    if (loaded) {
        const double weight = std::min(1.0, static_cast<double>(elapsed) / 100e6);
        load_now_ += weight * (static_cast<double>(backlog) - load_now_);
    }
    settle_ = kSettle + 4 * latency;
    latency_ = latency;
    step(now, paths.first(count), delivered);
    return (dropped_ | tried_) != out_before;
}

void PathTrials::step(Nanos now, std::span<const Sample> paths, std::uint64_t delivered) {
    const Nanos elapsed = now - phase_start_;
    if (phase_ == Phase::Watch) {
        for (std::size_t i = 0; i < paths.size() && busy_ >= kSoon; ++i) {
            const bool more_to_do = load_now_ > 2 * load_[i];
            if (dropped(i) && (now >= retry_at_[i] || more_to_do)) {
                candidate_ = i;
                dropped_ &= ~(Mask{1} << i);
                retrying_ = true;
                enter(Phase::Joining, now, delivered);
                return;
            }
        }
        if (busy_ >= wait_) {
            if (choose(paths)) {
                enter(Phase::Before, now, delivered);
                candidate_delivered_ = paths[candidate_].delivered;
            } else {
                give_up(kFirstWait);
            }
        }
        return;
    }
    const Nanos window = window_ + 4 * latency_;
    if (phase_idle_ > window / 8) {  // the load went away: no trial
        if (retrying_) {
            dropped_ |= Mask{1} << candidate_;
        }
        give_up(kSoon);
        return;
    }
    const bool settling =
        phase_ == Phase::Joining || phase_ == Phase::Leaving || phase_ == Phase::Returning;
    if (elapsed < (settling ? settle_ : window)) {
        return;
    }
    const double total = static_cast<double>(delivered - phase_delivered_) * 1e9 /
                         static_cast<double>(std::max<Nanos>(elapsed, 1));
    switch (phase_) {
        case Phase::Watch:
            return;
        case Phase::Joining:
            enter(Phase::Before, now, delivered);
            candidate_delivered_ = paths[candidate_].delivered;
            return;
        case Phase::Before:
            before_ = total;
            share_ = delivered == phase_delivered_
                         ? 0
                         : static_cast<double>(paths[candidate_].delivered - candidate_delivered_) /
                               static_cast<double>(delivered - phase_delivered_);
            tried_ = Mask{1} << candidate_;
            enter(Phase::Leaving, now, delivered);
            return;
        case Phase::Leaving:
            enter(Phase::Without, now, delivered);
            return;
        case Phase::Without:
            without_ = total;
            tried_ = 0;
            enter(Phase::Returning, now, delivered);
            return;
        case Phase::Returning:
            enter(Phase::After, now, delivered);
            candidate_delivered_ = paths[candidate_].delivered;
            return;
        case Phase::After:
            after_ = total;
            judge(now);
            if (phase_ == Phase::After) {  // once more: what was after is before
                before_ = after_;
                tried_ = Mask{1} << candidate_;
                enter(Phase::Leaving, now, delivered);
            } else {
                for (std::size_t i = 0; i < paths.size(); ++i) {
                    seen_[i] = paths[i].delivered;
                }
            }
            return;
    }
}

// The next path, in turn, that carries something but not most of it.
bool PathTrials::choose(std::span<const Sample> paths) {
    std::uint64_t sum = 0;
    std::size_t used = 0;
    for (std::size_t i = 0; i < paths.size(); ++i) {
        sum += paths[i].delivered - seen_[i];
        used += paths[i].up && !dropped(i) ? 1 : 0;
    }
    const double rate = static_cast<double>(sum) / static_cast<double>(std::max<Nanos>(busy_, 1));
    window_ = static_cast<Nanos>(std::clamp(kWindowBytes / std::max(rate, 1e-6),
                                            static_cast<double>(kWindow),
                                            static_cast<double>(kMaxWindow)));
    for (std::size_t step = 1; step <= paths.size() && used > 1 && sum > 0; ++step) {
        const std::size_t i = (candidate_ + paths.size() - step % paths.size()) % paths.size();
        const double share =
            static_cast<double>(paths[i].delivered - seen_[i]) / static_cast<double>(sum);
        if (share > kMostOfAll) {
            tested_ |= Mask{1} << i;  // of use beyond doubt
        } else if (paths[i].up && !dropped(i) && share > 0) {
            candidate_ = i;
            return true;
        }
    }
    return false;
}

void PathTrials::judge(Nanos now) {
    const double with = (before_ + after_) / 2;
    if (with <= 0 || std::abs(before_ - after_) > kSteady * with) {
        give_up(kFirstWait);  // a path that was tried again stays in until it can be judged
        return;
    }
    if (without_ < with * (1 - kPartMissed * share_)) {
        back_off_[candidate_] = 0;
        tested_ |= Mask{1} << candidate_;
        const bool all = (up_ & ~dropped_ & ~tested_) == 0;
        const Nanos wait = all ? useful_wait_ : kFirstWait;
        useful_wait_ = all ? std::min(2 * useful_wait_, kMaxUsefulWait) : useful_wait_;
        give_up(wait);
        return;
    }
    if (++useless_rounds_ < kRounds) {
        return;
    }
    dropped_ |= Mask{1} << candidate_;
    load_[candidate_] = load_now_;
    Nanos& back_off = back_off_[candidate_];
    back_off = back_off == 0 ? kFirstBackOff : std::min(2 * back_off, kMaxBackOff);
    retry_at_[candidate_] = now + back_off;
    ++drops_;
    give_up(kSoon);  // there may be another
}

}  // namespace deft::net
