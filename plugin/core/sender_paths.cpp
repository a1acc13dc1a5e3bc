// SPDX-License-Identifier: Apache-2.0
// The sender's care for its paths: trials, silence, loss, reconnecting.
#include <algorithm>

#include "deft/abi/net.h"
#include "plugin/core/sender.h"
#include "topology/base/log.h"

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
constexpr Nanos kFirstBackOff = 50 * kMillisecond;
constexpr Nanos kMaxBackOff = kSecond;
// A link that comes back starts an attempt at once, but no more often than this: it may be
// flapping. The attempts after it come sooner again too.
constexpr Nanos kReturnInterval = 100 * kMillisecond;
constexpr Nanos kReturnBackOff = 200 * kMillisecond;
constexpr Nanos kFlapping = 2 * kSecond;      // a path that lives shorter is not trusted at once
constexpr Nanos kAttemptLimit = 2 * kSecond;  // for one attempt, once a path was up
constexpr Nanos kTellOfWaiting = 60 * kSecond;
constexpr Nanos kGrace = 1500 * kMillisecond;  // for the other paths once the first is up

}  // namespace

Sender::Ready Sender::establish(Nanos now) {
    now_ = now;
    for (auto& link : links_) {
        if (link->path) {
            poll_link(*link, now, true);
        }
    }
    timers(now);
    if (failure_) {
        return Ready::Failed;
    }
    std::size_t tried = 0;
    std::size_t up = 0;
    for (const auto& link : links_) {
        up += link->state == PathState::Up ? 1 : 0;
        tried +=
            link->state != PathState::Up && link->failed_attempts > 0 && !link->dialer->reached(now)
                ? 1
                : 0;
    }
    if (usable_ == 0) {
        return Ready::NotYet;
    }
    first_up_ = first_up_ == 0 ? now : first_up_;
    const bool all = up + tried == links_.size();
    return all || now - first_up_ > kGrace ? Ready::Yes : Ready::NotYet;
}

void Sender::count_usable() {
    usable_ = 0;
    only_ = nullptr;
    spare_ = std::any_of(links_.begin(), links_.end(), [&](const auto& link) {
        return link->state == PathState::Up && !trials_.out(link->index);
    });
    for (const auto& link : links_) {
        if (takes(*link)) {
            only_ = link.get();
            ++usable_;
        }
    }
    if (usable_ != 1) {
        only_ = nullptr;
    }
}

// Leaves out paths that add nothing to the others.
void Sender::try_paths(Nanos now) {
    std::array<PathTrials::Sample, PathTrials::kMaxPaths> samples;
    const std::size_t count = std::min(links_.size(), samples.size());
    for (std::size_t i = 0; i < count; ++i) {
        const Link& link = *links_[i];
        samples[i] = {link.state == PathState::Up, link.delivered, link.rate.latency()};
    }
    // What waits for the receiver's credit would come no sooner over more paths: there the peer
    // sets the pace, for instance by what it sends itself in a ring.
    std::uint64_t backlog = 0;
    for (std::uint64_t message = oldest_; message < next_message_ && may_send(this->slot(message));
         ++message) {
        backlog += slot(message).delivered ? 0 : slot(message).size;
    }
    const std::uint64_t before = trials_.drops();
    if (!trials_.tick(now, std::span(samples.data(), count), backlog)) {
        return;
    }
    count_usable();
    if (trials_.drops() != before) {
        for (const auto& link : links_) {
            if (trials_.dropped(link->index)) {
                DEFT_INFO("path %s of %s adds nothing to the others: not used for a while",
                          link->dialer->describe(), options_.name);
            }
        }
    }
}

void Sender::apply(Link& link, PathEvent event, const char* why) {
    const PathState before = link.state;
    link.state = next_state(before, event);
    if (link.state == before) {
        return;
    }
    link.dialer->counters().transitions.fetch_add(1, std::memory_order_relaxed);
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

void Sender::idle(Link& link, Nanos now) {
    if (link.busy_since != 0) {
        link.dialer->counters().busy_ns.fetch_add(static_cast<std::uint64_t>(now - link.busy_since),
                                                  std::memory_order_relaxed);
        link.busy_since = 0;
    }
}

void Sender::lose(Link& link, const char* why, Nanos now) {
    const Path::Loss loss = link.path->loss();
    link.peer_ended = loss == Path::Loss::Ended || loss == Path::Loss::Reset;
    link.damaged = loss == Path::Loss::Damaged;
    apply(link, PathEvent::Lost, why);
    requeue(link);
    idle(link, now);
    link.first_flight = link.next_flight = link.copies_end = 0;
    link.rate.forget(now);
    const Nanos silence = std::min(link.path->silence(), options_.link_timeout / 4 * 3);
    link.path->close(0);
    link.path.reset();
    // A path that comes and goes is tried less and less often.
    const bool lasted = now - link.up_since > kFlapping;
    link.back_off = lasted ? kFirstBackOff : std::min(2 * link.back_off, kMaxBackOff);
    link.retry_at = now + (link.peer_ended && lasted ? 0 : link.back_off);
    if (link.damaged && usable_ == 0) {  // there is nothing better to wait for
        link.retry_at = std::min(link.retry_at, now + kFirstBackOff);
    }
    link.carrier = link.dialer->carrier();
    link.refused = false;
    // An idle path is alive as far as the kernel's keep-alive knows, whatever the last message was;
    // there is time for another attempt in any case. One that only brings damaged bytes is not
    // alive.
    if (!link.damaged) {
        last_alive_ = std::max(last_alive_, now - silence);
    }
    if (usable_ == 0) {
        all_lost_ = now;
    }
    next_timers_ = now;
}

void Sender::timers(Nanos now) {
    next_timers_ = now + kTimerInterval;
    for (auto& link : links_) {
        switch (link->state) {
            case PathState::Up:
            case PathState::Suspect:
                link->path->look_after(now);
                check_silence(*link, now);
                break;
            case PathState::Down:
            case PathState::Probing:
                if (!peer_bye_ && !failure_) {
                    dial(*link, now);
                }
                break;
        }
        if (!trials_.out(link->index)) {
            link->rate.age(now);
        }
    }
    if (links_.size() > 1) {
        try_paths(now);
        hurry(now);
    }
    check_all_lost(now);
    pump(now);
}

void Sender::check_silence(Link& link, Nanos now) {
    if (link.dialer->carrier().lost != link.carrier.lost) {
        lose(link, "the link lost its carrier", now);
        return;
    }
    if (link.in_flight() == 0 || links_.size() == 1) {
        return;
    }
    if (link.state == PathState::Suspect) {
        if (now - link.suspect_since > kSuspectLimit) {
            lose(link, "silent for too long", now);
        }
        return;
    }
    const Nanos silence = now - link.last_progress;
    if (silence < std::min(kMaxSilence, kSilence + 4 * link.rate.predicted(0))) {
        return;
    }
    // A receiver that is busy elsewhere is silent on all paths: only a path that moves, or that has
    // nothing to do, shows that it is this one.
    for (const auto& other : links_) {
        if (other.get() != &link && other->state == PathState::Up &&
            (other->at_leisure() || other->last_progress > link.last_progress + silence / 2)) {
            link.suspect_since = now;
            apply(link, PathEvent::NoProgress, "no acknowledgement");
            requeue(link);
            return;
        }
    }
}

void Sender::dial(Link& link, Nanos now) {
    const Carrier carrier = link.dialer->carrier();
    const bool back =
        carrier.gained != link.carrier.gained && now - link.attempt_start >= kReturnInterval;
    if (back) {
        link.back_off = std::min(link.back_off, kReturnBackOff);
        // What this attempt sent is gone, and the kernel's next try a second away.
        link.dialer->cancel();
        apply(link, PathEvent::ProbeFailed, "the link came back");
    }
    if (link.state == PathState::Down) {
        if (now < link.retry_at && !back) {
            return;
        }
        link.carrier = carrier;
        apply(link, PathEvent::Retry, "next attempt");
        link.attempt_start = now;
        link.dialer->start(++link.incarnation, now);
    }
    Connected connected;
    Dialer::Result result = link.dialer->poll(now, connected);
    // Until a path is up, one that has reached the peer's host waits for it to accept, however
    // long: another attempt would only be one more in its queue.
    const bool waits = first_up_ == 0 && link.dialer->reached(now);
    if (result == Dialer::Result::Pending && !waits &&
        now - std::max(link.attempt_start, first_up_) > kAttemptLimit) {
        link.dialer->cancel();
        result = Dialer::Result::Failed;
    }
    switch (result) {
        case Dialer::Result::Pending:
            return;
        case Dialer::Result::Connected: {
            link.path = std::move(connected.path);
            const double speed =
                connected.speed_mbps > 0 ? static_cast<double>(connected.speed_mbps) : 10000;
            if (!link.rate.measured()) {
                link.rate.reset(speed * 1e6 / 8, connected.round_trip);
            }
            link.failed_attempts = 0;
            link.up_since = now;
            link.peer_ended = link.refused = false;
            link.last_progress = now;
            posted_ = std::max(posted_, connected.posted);
            apply(link, PathEvent::Connected, "connected");
            link.dialer->counters().speed_mbps.store(static_cast<std::int64_t>(speed),
                                                     std::memory_order_relaxed);
            Control control;
            control.completed = connected.completed;
            control.posted = connected.posted;
            on_control(link, control);
            return;
        }
        case Dialer::Result::Refused:
        case Dialer::Result::Failed:
            link.refused = result == Dialer::Result::Refused;
            ++link.failed_attempts;
            apply(link, PathEvent::ProbeFailed, link.dialer->failure());
            link.back_off = std::clamp(2 * link.back_off, kFirstBackOff, kMaxBackOff);
            link.retry_at = now + link.back_off;
            return;
        case Dialer::Result::Fatal:
            apply(link, PathEvent::ProbeFailed, link.dialer->failure());
            fail(DEFT_NET_REMOTE_ERROR, link.dialer->failure());
            return;
    }
}

void Sender::check_all_lost(Nanos now) {
    if (failure_) {
        return;
    }
    bool ended = true;
    bool refused = false;
    bool tried = true;
    const Link* last = nullptr;
    for (const auto& link : links_) {
        if (link->state == PathState::Up || link->state == PathState::Suspect) {
            return;
        }
        ended = ended && link->peer_ended;
        refused = refused || link->refused;
        tried = tried && link->failed_attempts > 0;
        last = link.get();
        // A rank may be minutes late for its first collective: until it accepts, its host's word is
        // all there is. An abort ends the waiting.
        if (first_up_ == 0 && link->dialer->reached(now)) {
            last_alive_ = now;
            if (!told_waiting_ && now - started_ > kTellOfWaiting) {
                told_waiting_ = true;
                DEFT_INFO("%s waits for the peer: its host answers, its rank has not accepted yet",
                          options_.name);
            }
        }
    }
    // Nobody waits for it: the path may yet come back, and whoever asks next gets time for that.
    if (first_up_ != 0 && !held()) {
        last_alive_ = std::max(last_alive_, now - options_.link_timeout / 2);
        return;
    }
    // Once connected, a peer that closed every path and listens no more is a dead process.
    if (first_up_ != 0 && peer_bye_) {
        fail(DEFT_NET_REMOTE_ERROR, "the peer closed the connection");
    } else if (first_up_ != 0 && ended && (refused || (tried && now - all_lost_ > kPeerGone))) {
        fail(DEFT_NET_REMOTE_ERROR, "the peer process is gone: it closed every path");
    } else if (now - last_alive_ > options_.link_timeout) {
        char text[256];
        std::snprintf(text, sizeof(text),
                      "no path to the peer for %.1f s (DEFT_LINK_TIMEOUT); last: %s: %s",
                      static_cast<double>(now - last_alive_) / 1e9, last->dialer->describe(),
                      last->dialer->failure());
        fail(DEFT_NET_REMOTE_ERROR, text);
    }
}

void Sender::fail(int code, const char* text) {
    if (!failure_) {
        failure_.set(code, "%s: %s", options_.name, text);
        DEFT_WARN("%s", failure_.text);
    }
}

}  // namespace deft::net
