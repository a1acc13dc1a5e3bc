// SPDX-License-Identifier: Apache-2.0
// The sender's care for its paths: silence, loss, reconnecting.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "base/presence.h"
#include "deft/abi/net.h"
#include "plugin/core/quiet_warning.h"
#include "plugin/core/sender.h"

namespace deft::net {
namespace {

constexpr Nanos kTimerInterval = kMillisecond;
// A path with outstanding bytes and no acknowledgement for this long, and four times what was
// predicted, is suspect while another path moves: below the bar of one second of stall.
constexpr Nanos kSilence = 250 * kMillisecond;
constexpr Nanos kMaxSilence = 700 * kMillisecond;
// Then it is taken down and connected anew. Its chunks have long been sent again elsewhere: what
// waiting gives is that a path which is only crowded still brings the acknowledgements it owes, of
// a receiver that may not be polled again.
constexpr Nanos kSuspectLimit = 3 * kSecond;
constexpr Nanos kUnprovenLimit = kSecond;  // it owes none
constexpr Nanos kFirstBackOff = 50 * kMillisecond;
constexpr Nanos kMaxBackOff = kSecond;
// A link that comes back starts an attempt at once, but no more often than this: it may be
// flapping. The attempts after it come sooner again too.
constexpr Nanos kReturnInterval = 100 * kMillisecond;
constexpr Nanos kReturnBackOff = 200 * kMillisecond;
constexpr Nanos kFlapping = 2 * kSecond;       // a path that lives shorter is not trusted at once
constexpr Nanos kAttemptLimit = 2 * kSecond;   // for one attempt, once a path was up
constexpr Nanos kLook = 50 * kMillisecond;     // for peers that ask
constexpr Nanos kGrace = 1500 * kMillisecond;  // for the other paths once the first is up
constexpr Nanos kSayAgain = 600 * kSecond;     // what is wrong with a path

}  // namespace

Sender::Ready Sender::establish(Nanos now) {
    now_ = now;
    for (auto& link : links_) {
        if (link->path) {
            poll_link(*link, now, true);
        }
    }
    if (fencing_) {  // of paths that came up and were lost before the others were there
        drive_fences(now);
    }
    timers(now);
    if (failure_) {
        retire();
        return Ready::Failed;
    }
    std::size_t tried = 0;
    std::size_t up = 0;
    for (const auto& link : links_) {
        up += link->state == PathState::Up ? 1 : 0;
        const bool failed = link->failed_attempts > 0 && !link->dialer->reached(now);
        // A reserve may lead nowhere, and is not waited for.
        tried += link->state != PathState::Up && (failed || link->dialer->reserve()) ? 1 : 0;
    }
    if (usable_ == 0) {
        return Ready::NotYet;
    }
    first_up_ = first_up_ == 0 ? now : first_up_;
    const bool all = up + tried == links_.size();
    established_ = all || now - first_up_ > kGrace;
    return established_ ? Ready::Yes : Ready::NotYet;
}

void Sender::count_usable() {
    usable_ = unproven_ = granted_up_ = 0;
    only_ = nullptr;
    any_proven_ = spare_ = firsts_ = false;
    std::uint32_t up_now = 0;
    for (const auto& link : links_) {
        const bool up = link->state == PathState::Up;
        if (up && link->full_size.proven()) {
            any_proven_ = true;
        }
        granted_up_ += up && link->can.granted ? 1 : 0;
        unproven_ += up && !link->full_size.proven() ? 1 : 0;
        up_now |= up ? std::uint32_t{1} << link->index : 0;
    }
    for (const auto& link : links_) {
        link->standby.give_way((link->gives_way_to & up_now) != 0);
    }
    for (const auto& link : links_) {
        spare_ = spare_ || (sound(*link) && !left_out(*link));
        firsts_ = firsts_ || (sound(*link) && !link->standby.gives_way());
    }
    for (const auto& link : links_) {
        if (takes(*link)) {
            only_ = link.get();
            ++usable_;
        }
    }
    if (usable_ != 1) {
        only_ = nullptr;
    }
    note_reserve(usable_ > 0 && std::all_of(links_.begin(), links_.end(), [&](const auto& link) {
                     return !takes(*link) || link->dialer->reserve();
                 }));
}

std::uint64_t Sender::carried_by_reserves() const {
    std::uint64_t bytes = 0;
    for (const auto& link : links_) {
        bytes += link->dialer->reserve() ? link->delivered : 0;
    }
    return bytes;
}

void Sender::note_reserve(bool alone) {
    if (alone == on_reserve_) {
        return;
    }
    on_reserve_ = alone;
    reserved_before_ = carried_by_reserves();
    if (!alone && std::exchange(reserve_told_, false)) {
        Presence::process().on_reserve.fetch_sub(1, std::memory_order_relaxed);
    }
}

// Where the shim looks whether a plan's network is still there. Not before a reserve has carried
// something: a peer that stands still makes each path suspect.
void Sender::tell_reserve() {
    if (on_reserve_ && !reserve_told_ && carried_by_reserves() > reserved_before_) {
        reserve_told_ = true;
        Presence::process().on_reserve.fetch_add(1, std::memory_order_relaxed);
        DEFT_INFO("%s: none of the links that are there for it carries: a reserve does",
                  options_.name);
    }
}

void Sender::apply(PathSlot& link, PathEvent event, const char* why) {
    const PathState before = link.state;
    link.state = next_state(before, event);
    if (link.state == before) {
        return;
    }
    count_state(link, before);
    const bool news =
        link.incarnation > 1 || before == PathState::Up || before == PathState::Suspect;
    const bool attempt = link.state == PathState::Probing ||
                         (before == PathState::Probing && link.state == PathState::Down);
    if (news && !attempt && !peer_bye_) {
        DEFT_INFO("path %s of %s is %s: %s", link.dialer->describe(), options_.name,
                  to_string(link.state), why);
    } else {
        DEFT_DEBUG("path %s of %s: %s -> %s (%s)", link.dialer->describe(), options_.name,
                   to_string(before), to_string(link.state), why);
    }
    count_usable();
}

// For who watches the links. A path that ends with its connection is not away.
void Sender::count_state(PathSlot& link, PathState before) {
    LinkCounters& counters = link.dialer->counters();
    counters.transitions.fetch_add(1, std::memory_order_relaxed);
    if (before == PathState::Up) {
        counters.paths_up.fetch_sub(1, std::memory_order_relaxed);
        if (!peer_bye_ && !leaving_) {
            link.away_since = steady_now();
            counters.paths_away.fetch_add(1, std::memory_order_relaxed);
        }
    } else if (link.state == PathState::Up) {
        counters.paths_up.fetch_add(1, std::memory_order_relaxed);
        if (link.away_since != 0) {
            counters.note_stall(steady_now() - link.away_since);
            counters.paths_away.fetch_sub(1, std::memory_order_relaxed);
            link.away_since = 0;
        }
    }
}

void Sender::idle(PathSlot& link, Nanos now) {
    if (link.busy_since != 0) {
        link.dialer->counters().busy_ns.fetch_add(static_cast<std::uint64_t>(now - link.busy_since),
                                                  std::memory_order_relaxed);
        link.busy_since = 0;
    }
}

void Sender::lose(PathSlot& link, const char* why, Nanos now, How how) {
    const Path::Loss loss = link.path->loss();
    const bool ended = loss == Path::Loss::Ended || loss == Path::Loss::Reset;
    link.damaged = loss == Path::Loss::Damaged;
    if (how == How::Silent || loss == Path::Loss::TimedOut) {
        link.full_size.lost_in_silence();
        tell_of_swallowing(link, now);
    }
    apply(link, PathEvent::Lost, why);
    idle(link, now);
    link.rate.forget(now);
    if (fencing_) {
        open_fence(link, now);
    } else {
        requeue(link);
        link.first_flight = link.next_flight = link.copies_end = 0;
        link.path->close(0);
        link.path.reset();
    }
    said_bye_ = false;
    // A path that comes and goes is tried less and less often.
    const bool lasted = now - link.up_since > kFlapping;
    link.back_off = lasted ? kFirstBackOff : std::min(2 * link.back_off, kMaxBackOff);
    link.retry_at = now + (ended && lasted ? 0 : link.back_off);
    link.retry_at = std::max(link.retry_at, now + link.full_size.back_off());
    link.carrier = link.dialer->carrier();
    evidence_.lost(ended, !connected(), now);
    if (usable_ == 0) {
        hasten(now, ended ? kReturnInterval : kMaxBackOff);
    }
    if (link.damaged && usable_ == 0) {  // there is nothing better to wait for
        link.retry_at = std::min(link.retry_at, now + kFirstBackOff);
    }
    next_timers_ = now;
}

// There is no path: none waits for longer. Where the peer has ended one, its host is to say soon
// whether it is gone.
void Sender::hasten(Nanos now, Nanos limit) {
    for (auto& link : links_) {
        link->retry_at = std::min(link->retry_at, std::max(now, link->attempt_start + limit));
    }
}

void Sender::tell_of_swallowing(const PathSlot& link, Nanos now) {
    if (link.full_size.swallowed() != 2) {
        return;
    }
    char about[192];
    std::snprintf(about, sizeof(about), "swallowed %s", link.dialer->describe());
    log::write(
        may_warn(about, now, kSayAgain) ? log::Level::Warn : log::Level::Info,
        "path %s of %s connects and answers small packets, but full-size ones do not arrive: "
        "most likely the MTU of this link is larger than a switch or tunnel on the way allows "
        "(compare `ip link` on both hosts; try `ping -M do -s 8972`, then 1472). %s",
        link.dialer->describe(), options_.name,
        any_proven_ ? "It is not used until a full-size piece comes through"
                    : "There is no other path: its packets are kept small, which is slower");
}

// A path that keeps its packets small is made anew once full ones pass again. Not the only one
// while it carries what NCCL was told is sent: see check_silence().
void Sender::try_full_size(PathSlot& link, Nanos now) {
    const bool promised = links_.size() == 1 && !held() && oldest_ < next_message_;
    if (link.state != PathState::Up || promised || !link.full_size.trial_due(now)) {
        return;
    }
    const Dialer::Trial result = link.dialer->try_full_size(now);
    if (result == Dialer::Trial::Pending) {
        return;
    }
    const bool passed = result == Dialer::Trial::Passed;
    link.full_size.tried(passed, now);
    if (passed) {
        lose(link, "made anew, as full-size packets pass again", now);
        link.retry_at = now;
    }
}

void Sender::timers(Nanos now) {
    next_timers_ = now + kTimerInterval;
    for (auto& link : links_) {
        switch (link->state) {
            case PathState::Up:
            case PathState::Suspect:
                link->path->look_after(now);
                check_silence(*link, now);
                try_full_size(*link, now);
                break;
            case PathState::Down:
            case PathState::Probing:
                if (link->path) {
                    check_silence(*link, now);
                } else if (!peer_bye_ && !failure_) {
                    dial(*link, now);
                }
                break;
        }
        if (!left_out(*link)) {
            link->rate.age(now);
        }
    }
    if (links_.size() > 1) {
        if (established_ && unproven_ > 0 && waits()) {
            send_probes(now);
        }
        if (fencing_) {
            stand_by(now);
        }
        try_paths(now);
        resend_tail(now);
        tell_reserve();
    }
    if (options_.home != nullptr && now >= next_look_) {
        next_look_ = now + kLook;
        options_.home->poll(now);
    }
    check_end(now);
    pump(now);
}

void Sender::check_silence(PathSlot& link, Nanos now) {
    const Carrier carrier = link.dialer->carrier();
    // While NCCL waits for nothing, the only path is kept for what it was told is sent: the kernel
    // would bring that even if this process ended. Without a carrier no new path is to be had.
    const bool keep = links_.size() == 1 && carrier.down && !held() && oldest_ < next_message_;
    if (carrier.lost != link.carrier.lost && !keep) {
        lose(link, "the link lost its carrier", now);
        return;
    }
    if (link.in_flight() == 0 || links_.size() == 1 || link.fence.is_open()) {
        return;
    }
    if (link.state == PathState::Suspect) {
        if (now - link.suspect_since > (link.full_size.proven() ? kSuspectLimit : kUnprovenLimit)) {
            lose(link, "silent for too long", now, How::Silent);
        }
        return;
    }
    const Nanos silence = now - link.last_progress;
    if (silence < std::min(kMaxSilence, kSilence + 4 * link.rate.predicted(0))) {
        return;
    }
    if (!another_moves(link, link.last_progress + silence / 2)) {
        return;
    }
    // Its chunks cannot go elsewhere while it stands.
    if (fencing_) {
        lose(link, "no acknowledgement", now, How::Silent);
    } else {
        link.suspect_since = now;
        apply(link, PathEvent::NoProgress, "no acknowledgement");
        requeue(link);
    }
}

// A receiver that is busy elsewhere is silent on all paths: only a path that moves, or that has
// nothing to do, shows that it is this one. A card moves without the receiver: there it takes a
// word of its own, or an open receive, for which NCCL looks all the time.
bool Sender::another_moves(const PathSlot& link, Nanos since) const {
    const bool receiving = oldest_ < std::min(posted_, next_message_);
    return std::any_of(links_.begin(), links_.end(), [&](const auto& other) {
        if (other.get() == &link || other->state != PathState::Up) {
            return false;
        }
        if (other->can.acknowledges && !link.can.acknowledges) {
            return receiving || other->heard > since;
        }
        return other->at_leisure() || other->last_progress > since;
    });
}

void Sender::dial(PathSlot& link, Nanos now) {
    if (!begin_attempt(link, now)) {
        return;
    }
    Connected connected;
    Dialer::Result result = link.dialer->poll(now, connected);
    // Until a path is up, one that has reached the peer's host waits for it to accept, however
    // long: another attempt would only be one more in its queue.
    const bool waits = first_up_ == 0 && link.dialer->reached(now);
    if (result == Dialer::Result::Pending && !waits &&
        now - std::max(link.attempt_start, first_up_) > kAttemptLimit) {
        link.dialer->cancel();
        result = Dialer::Result::Silent;
    }
    if (link.dialer->reached(now)) {
        link.unreachable = false;
        evidence_.heard(Word::Lives, now);
    }
    if (!speaks_for_peer(link, now) &&
        (result == Dialer::Result::Closed || result == Dialer::Result::Refused ||
         result == Dialer::Result::Fatal)) {
        result = Dialer::Result::Failed;
    }
    switch (result) {
        case Dialer::Result::Pending:
            return;
        case Dialer::Result::Connected:
            take(link, std::move(connected), now);
            return;
        case Dialer::Result::Closed:
            evidence_.heard(Word::Closed, now);
            break;
        case Dialer::Result::Refused:
            evidence_.heard(Word::Refused, now);
            link.unreachable = true;
            break;
        case Dialer::Result::Failed:
            link.unreachable = true;
            break;
        case Dialer::Result::Silent:
            break;
        case Dialer::Result::Fatal:
            apply(link, PathEvent::ProbeFailed, link.dialer->failure());
            fail(DEFT_NET_REMOTE_ERROR, link.dialer->failure());
            return;
    }
    ++link.failed_attempts;
    apply(link, PathEvent::ProbeFailed, link.dialer->failure());
    link.back_off = std::clamp(2 * link.back_off, kFirstBackOff, kMaxBackOff);
    link.retry_at = now + std::max(link.back_off, usable_ == 0 ? 0 : link.full_size.back_off());
}

// What is answered to a link that has never led to the peer may be another host's answer, which has
// the address on that link's network. It counts where no link knows better: none has led to the
// peer, and each other one has been tried in vain.
bool Sender::speaks_for_peer(const PathSlot& link, Nanos now) const {
    const auto in_vain = [&](const auto& other) {
        return other.get() == &link || (other->failed_attempts > 0 && !other->dialer->reached(now));
    };
    return link.led || (first_up_ == 0 && std::all_of(links_.begin(), links_.end(), in_vain));
}

// False: it is too soon for the next attempt.
bool Sender::begin_attempt(PathSlot& link, Nanos now) {
    const Carrier carrier = link.dialer->carrier();
    const bool back =
        carrier.gained != link.carrier.gained && now - link.attempt_start >= kReturnInterval;
    if (back) {
        link.back_off = std::min(link.back_off, kReturnBackOff);
        // What this attempt sent is gone, and the kernel's next try a second away.
        link.dialer->cancel();
        link.full_size.link_returned();
        apply(link, PathEvent::ProbeFailed, "the link came back");
    }
    if (link.state != PathState::Down) {
        return true;
    }
    if (now < link.retry_at && !back) {
        return false;
    }
    link.carrier = carrier;
    apply(link, PathEvent::Retry, "next attempt");
    link.attempt_start = now;
    // It costs time that another path does not take.
    const bool small = link.full_size.wants_small() && !any_proven_;
    link.full_size.small(small);
    link.dialer->keep_small(small);
    link.dialer->start(++link.incarnation, now);
    return true;
}

// The path that an attempt has come to.
void Sender::take(PathSlot& link, Connected&& connected, Nanos now) {
    link.path = std::move(connected.path);
    if (leaving_) {
        link.path->leave_to_kernel();
    }
    const double speed =
        connected.speed_mbps > 0 ? static_cast<double>(connected.speed_mbps) : 10000;
    if (!link.rate.measured()) {
        link.rate.reset(connected.probed_rate > 0 ? connected.probed_rate : speed * 1e6 / 8,
                        connected.round_trip);
    }
    link.failed_attempts = 0;
    link.unreachable = false;
    link.led = true;
    link.full_size.connected();
    prove_until_ = 0;
    evidence_.connected();
    posted_ = std::max(posted_, connected.posted);
    if (!link.fence.is_open()) {
        use(link, now);
    }
    link.dialer->counters().speed_mbps.store(static_cast<std::int64_t>(speed),
                                             std::memory_order_relaxed);
    Control control;
    control.completed = connected.completed;
    control.posted = connected.posted;
    on_control(link, control);
}

// A path that is connected, and has no predecessor any more.
void Sender::use(PathSlot& link, Nanos now) {
    link.up_since = now;
    link.last_progress = now;
    if (link.can.granted) {  // as whoever makes such a path has seen
        link.full_size.carried(FullSize::kPiece);
    }
    apply(link, PathEvent::Connected, "connected");
}

}  // namespace deft::net
