// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/path_prober.h"

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
constexpr Nanos kSeldom = 16;  // times as long as the trial before, at least
constexpr Nanos kMaxSeldom = 1000 * kSecond;
constexpr Nanos kAway = 20 * kMillisecond;  // nobody drove the connection: no time of ours
constexpr Nanos kRamp = 5 * kMillisecond;   // after a pause, until the links are full
// A phase that does not come to its end because there is too little load. A path that is out is
// missed by what is sent beside it.
constexpr Nanos kPatience = 60 * kSecond;
constexpr Nanos kPatienceOut = 10 * kSecond;
// Under load: there is so much to send that more links would have something to do.
constexpr std::uint64_t kLoad = 256 * 1024;
constexpr double kMostOfAll = 0.6;   // a path that carries more is doubted after all others, seldom
constexpr double kSteady = 0.15;     // totals before and after may differ by this much
constexpr double kPartMissed = 0.3;  // a path is useless if less of its part is missed than this
constexpr int kRounds = 2;

}  // namespace

bool PathProber::begin(Nanos now) {
    return token_ == nullptr || token_->take(this, now);
}

void PathProber::end() {
    if (token_ != nullptr) {
        token_->give(this);
    }
}

void PathProber::enter(Phase phase, Nanos now) {
    phase_ = phase;
    phase_start_ = now;
    phase_loaded_ = 0;
    phase_all_ = phase_candidate_ = 0;
}

void PathProber::give_up(Nanos wait) {
    phase_ = Phase::Watch;
    tried_ = 0;
    busy_ = 0;
    wait_ = wait;
    useless_rounds_ = 0;
    retrying_ = false;
    end();
}

// How long after a trial that could not tell: it has cost something, too.
Nanos PathProber::undecided() {
    const Nanos wait = unsure_wait_;
    unsure_wait_ = std::min(2 * unsure_wait_, kMaxUsefulWait);
    return wait;
}

bool PathProber::tick(Nanos now, std::span<const Sample> paths, std::uint64_t backlog) {
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
        unsure_wait_ = kFirstWait;
        give_up(kFirstWait);
    }
    for (std::size_t i = 0; i < count && busy_ == 0; ++i) {
        seen_[i] = paths[i].delivered;
    }
    if ((up & (up - 1)) == 0) {
        return (dropped_ | tried_) != out_before;
    }
    const bool loaded = backlog >= kLoad && elapsed < kAway;
    loaded_ = loaded;
    ramp_ = loaded ? ramp_ + elapsed : 0;
    const std::uint64_t candidate = paths[candidate_].delivered;
    if (loaded && ramp_ > kRamp + 2 * latency) {
        phase_loaded_ += elapsed;
        phase_all_ += delivered - last_all_;
        phase_candidate_ += candidate - last_candidate_;
    }
    last_all_ = delivered;
    last_candidate_ = candidate;
    if (loaded) {
        busy_ += elapsed;
        const double weight = std::min(1.0, static_cast<double>(elapsed) / 100e6);
        load_now_ += weight * (static_cast<double>(backlog) - load_now_);
    }
    settle_ = kSettle + 4 * latency;
    latency_ = latency;
    step(now, paths.first(count));
    return (dropped_ | tried_) != out_before;
}

void PathProber::step(Nanos now, std::span<const Sample> paths) {
    if (phase_ == Phase::Watch) {
        watch(now, paths);
        return;
    }
    const bool too_long =
        tried_ != 0 ? now - out_since_ > kPatienceOut : now - phase_start_ > kPatience;
    // An idle connection is driven too, now and then: the token is not kept for that.
    const bool ours = token_ == nullptr || (loaded_ ? begin(now) : token_->has(this));
    if (too_long || !ours) {
        if (retrying_) {
            leave_out(now);
        }
        give_up(undecided());
        return;
    }
    const bool settling =
        phase_ == Phase::Joining || phase_ == Phase::Leaving || phase_ == Phase::Returning;
    if (phase_loaded_ >= (settling ? settle_ : window_ + 4 * latency_)) {
        next_phase(now);
    }
}

// No trial is under way: begins one that is due.
void PathProber::watch(Nanos now, std::span<const Sample> paths) {
    for (std::size_t i = 0; i < paths.size() && busy_ >= kSoon; ++i) {
        const bool more_to_do = load_now_ > 2 * load_[i];
        if (dropped(i) && (now >= retry_at_[i] || more_to_do) && begin(now)) {
            candidate_ = i;
            dropped_ &= ~(Mask{1} << i);
            retrying_ = true;
            retry_start_ = now;
            last_candidate_ = paths[candidate_].delivered;
            enter(Phase::Joining, now);
            return;
        }
    }
    if (busy_ >= wait_ && begin(now)) {
        if (choose(paths)) {
            last_candidate_ = paths[candidate_].delivered;
            enter(Phase::Before, now);
        } else {
            give_up(kFirstWait);
        }
    }
}

// The candidate carries nothing from here on.
void PathProber::take_out(Nanos now) {
    tried_ = Mask{1} << candidate_;
    out_since_ = now;
    enter(Phase::Leaving, now);
}

// The phase has seen enough.
void PathProber::next_phase(Nanos now) {
    const double total = static_cast<double>(phase_all_) * 1e9 / static_cast<double>(phase_loaded_);
    switch (phase_) {
        case Phase::Watch:
            return;
        case Phase::Joining:
            enter(Phase::Before, now);
            return;
        case Phase::Before:
            before_ = total;
            share_ = phase_all_ == 0
                         ? 0
                         : static_cast<double>(phase_candidate_) / static_cast<double>(phase_all_);
            take_out(now);
            return;
        case Phase::Leaving:
            enter(Phase::Without, now);
            return;
        case Phase::Without:
            without_ = total;
            tried_ = 0;
            enter(Phase::Returning, now);
            return;
        case Phase::Returning:
            enter(Phase::After, now);
            return;
        case Phase::After:
            after_ = total;
            judge(now);
            if (phase_ == Phase::After) {  // once more: what was after is before
                before_ = after_;
                take_out(now);
            }
            return;
    }
}

// The next path, in turn, that carries something; one that carries most of it only when all others
// have been tried and some time has passed.
bool PathProber::choose(std::span<const Sample> paths) {
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
        if (share == 0 || (share > kMostOfAll && useful_wait_ == kUsefulWait)) {
            tested_ |= Mask{1} << i;  // there is nothing to find out, one would think
        } else if (paths[i].up && !dropped(i)) {
            candidate_ = i;
            return true;
        }
    }
    return false;
}

void PathProber::leave_out(Nanos now) {
    dropped_ |= Mask{1} << candidate_;
    load_[candidate_] = retrying_ ? std::max(load_[candidate_], load_now_) : load_now_;
    Nanos& back_off = back_off_[candidate_];
    back_off = back_off == 0 ? kFirstBackOff : std::min(2 * back_off, kMaxBackOff);
    // Where there is little load a trial takes long, with the path in for most of it.
    const Nanos tried = retrying_ ? now - retry_start_ : 0;
    retry_at_[candidate_] = now + std::max(back_off, std::min(kSeldom * tried, kMaxSeldom));
}

void PathProber::judge(Nanos now) {
    const double with = (before_ + after_) / 2;
    if (with <= 0 || std::abs(before_ - after_) > kSteady * with) {
        // A path that was tried again stays in until it can be judged.
        give_up(retrying_ ? kFirstWait : undecided());
        return;
    }
    unsure_wait_ = kFirstWait;
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
    leave_out(now);
    ++drops_;
    give_up(kSoon);  // there may be another
}

}  // namespace deft::net
