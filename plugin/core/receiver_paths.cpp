// SPDX-License-Identifier: Apache-2.0
// The receiver's care for its paths: new ones at the source, lost ones, the peer's end.
#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "deft/abi/net.h"
#include "plugin/core/quiet_warning.h"
#include "plugin/core/receiver.h"

namespace deft::net {
namespace {

constexpr Nanos kTimerInterval = 2 * kMillisecond;
constexpr Nanos kLookInterval = 50 * kMillisecond;
constexpr Nanos kGrace = 1500 * kMillisecond;  // for the other paths once the first is up
// Twice the longest pause between the kernel's own questions (tcp_socket.cpp).
constexpr Nanos kQuiet = 20 * kSecond;
constexpr Nanos kSilenceInterval = kSecond;
constexpr Nanos kSayGoneFor = kSecond;  // longest pause before a lost path is told again

}  // namespace

bool Receiver::establish(Nanos now) {
    now_ = now;
    take_in(now);
    if (up_ == 0) {
        return false;
    }
    first_up_ = first_up_ == 0 ? now : first_up_;
    return up_ + options_.absent >= links_.size() || now - first_up_ > kGrace;
}

void Receiver::apply(PathSlot& link, PathEvent event, const char* why) {
    const PathState before = link.state;
    link.state = next_state(before, event);
    if (link.state == before) {
        return;
    }
    link.counters->transitions.fetch_add(1, std::memory_order_relaxed);
    DEFT_DEBUG("path %zu of %s: %s -> %s (%s)", link.index, options_.name, to_string(before),
               to_string(link.state), why);
    up_ = granted_up_ = 0;
    for (const auto& each : links_) {
        const bool up = each->state == PathState::Up;
        up_ += up ? 1 : 0;
        granted_up_ += up && each->can.granted ? 1 : 0;
    }
}

void Receiver::take_in(Nanos now) {
    Control state;
    state.completed = completed_;
    state.posted = posted_;
    for (Admitted admitted; source_ && source_->next(now, state, admitted); admitted = {}) {
        if (admitted.index >= links_.size()) {
            continue;
        }
        PathSlot& link = *links_[admitted.index];
        if (admitted.incarnation <= link.barred) {
            continue;  // the sender was told that nothing comes on it
        }
        if (link.path) {
            if (admitted.incarnation <= link.incarnation) {
                continue;
            }
            lose(link, "replaced by a newer connection", now);
        }
        link.path = std::move(admitted.path);
        link.counters = admitted.counters;
        link.can = link.path->capabilities();
        link.can.inline_bytes = options_.gpu_messages ? 0 : link.can.inline_bytes;
        if (auto flusher = link.path->flusher(); flusher != nullptr) {
            link.flusher = std::move(flusher);
        }
        link.granted = completed_;
        link.credited = link.told_at = 0;
        granting_ = granting_ || link.can.granted;
        link.incarnation = admitted.incarnation;
        link.received = link.told_received = 0;
        link.owed = link.lone = link.lone_bytes = 0;
        link.tell = false;
        link.reading = link.overtaken = false;
        link.say_gone_at = 0;
        link.carrier_lost = source_->carrier(link.index).lost;
        link.state = PathState::Probing;
        apply(link, PathEvent::Connected, link.path->describe());
        evidence_.connected();
        // A further path may be gone before the welcome has come: the others tell.
        const std::uint64_t told = std::min(state.posted, admitted.told_posted);
        announced_ = up_ == 1 ? std::max(announced_, told) : announced_;
        link.tell = told < state.posted;
        // When the last path went there was none to say so on.
        for (auto& other : links_) {
            if (!other->path && other->incarnation > 0) {
                other->say_gone_at = now;
                other->say_gone_pause = kTimerInterval;
            }
        }
    }
}

void Receiver::lose(PathSlot& link, const char* why, Nanos now) {
    const Path::Loss loss = link.path->loss();
    apply(link, PathEvent::Lost, why);
    evidence_.lost(loss == Path::Loss::Ended || loss == Path::Loss::Reset, up_ == 0, now);
    if (loss == Path::Loss::Damaged) {
        log::write(damage_told_ ? log::Level::Info : log::Level::Warn,
                   "%s: %s. They are sent again; if it repeats (DEFT_LOG=info tells each time), "
                   "look at the NIC, cable and switch",
                   options_.name, why);
        damage_told_ = true;
    }
    for (auto& other : links_) {
        // What its grants have told the sender may not know.
        other->tell = other->tell || (link.can.granted && other->path);
    }
    const Nanos silence = std::min(link.path->silence(), options_.link_timeout / 4 * 3);
    begin_fence(link);
    link.tell = false;
    if (up_ == 0) {
        patience_.already(silence);
        next_timers_ = now;
        return;
    }
    link.say_gone_at = now;
    link.say_gone_pause = kTimerInterval;
    say_gone(link, now);
}

// Carrier loss is often seen at one end only: it is said on what is left. More than once, as that
// may be full, or lost itself: the sender would learn of it only from silence.
void Receiver::say_gone(PathSlot& link, Nanos now) {
    Control gone;
    gone.kind = Control::Kind::PathDown;
    gone.path = static_cast<std::uint16_t>(link.index);
    gone.completed = completed_;
    gone.posted = posted_;
    gone.received = link.incarnation;  // a newer connection of this path is not meant
    for (auto& other : links_) {
        if (other->path) {
            (void)other->path->send(gone);
        }
    }
    link.say_gone_at = link.say_gone_pause > kSayGoneFor ? 0 : now + link.say_gone_pause;
    link.say_gone_pause *= 2;
}

void Receiver::timers(Nanos now) {
    next_timers_ = now + kTimerInterval;
    // On a single path TCP itself is the best at surviving an outage: the sender may have been told
    // that small messages are done, and nobody may be there to send them again.
    for (auto& link : links_) {
        if (links_.size() > 1 && link->path && source_ &&
            source_->carrier(link->index).lost != link->carrier_lost) {
            lose(*link, "the link lost its carrier", now);
            continue;
        }
        if (link->path && link->can.granted) {
            link->path->look_after(now);
        }
        if (link->say_gone_at != 0 && now >= link->say_gone_at) {
            say_gone(*link, now);
        }
    }
    // While all paths are up, a newer connection of one of them is the only thing to wait for: the
    // sender has then lost a path that still looks well from here.
    if (up_ < links_.size() || now >= next_look_ || (source_ && source_->expecting())) {
        next_look_ = now + kLookInterval;
        take_in(now);
    }
    if (!failure_) {
        check_end(now);
    }
}

// True if no path is left, or none of which the kernel has heard for long: it asks now and then
// where nothing comes. While the peer's host answers, nothing may be on its way: the sender knows,
// and says when it gives up.
bool Receiver::cut_off(Nanos now) {
    if (up_ == 0) {
        return true;
    }
    if (worked_ != worked_before_ || quiet_since_ == 0) {
        worked_before_ = worked_;
        quiet_since_ = now;
        silent_ = false;
    }
    if (now - quiet_since_ < kQuiet || now < next_silence_) {
        return silent_;
    }
    next_silence_ = now + kSilenceInterval;
    Nanos silence = now;
    for (const auto& link : links_) {
        silence = link->path ? std::min(silence, link->path->silence()) : silence;
    }
    if (!silent_ && silence >= kQuiet) {
        patience_.already(silence);
    }
    silent_ = silence >= kQuiet;
    return silent_;
}

void Receiver::check_end(Nanos now) {
    Patience::Tick tick;
    tick.waits = busy() && held() && cut_off(now);
    tick.dark = true;
    for (const auto& link : links_) {
        const bool was_up = link->incarnation > 0;
        if (was_up && !source_->carrier(link->index).down) {
            tick.dark = false;
        }
        if (was_up && tick.waits) {
            evidence_.heard(source_->ask(link->index, now), now);
        }
    }
    patience_.tick(now, tick);
    if (!tick.waits) {
        return;
    }
    if (peer_bye_) {
        fail(DEFT_NET_REMOTE_ERROR, "the peer closed the connection");
    } else if (evidence_.gone(now)) {
        fail(DEFT_NET_REMOTE_ERROR, evidence_.reason());
    } else if (patience_.expired()) {
        char text[160];
        std::snprintf(text, sizeof(text), "no path to the peer for %.1f s (DEFT_LINK_TIMEOUT)",
                      static_cast<double>(patience_.waited()) / 1e9);
        fail(DEFT_NET_REMOTE_ERROR, text);
    } else if (patience_.warn_due()) {
        const bool first = may_warn(options_.peer, now, Patience::kWarnEvery - kSecond);
        log::write(first ? log::Level::Warn : log::Level::Info,
                   "%s: no path to %s for %.0f s (%zu links). It goes on as soon as the peer gets "
                   "through; until then look at these links, the switches between, and its host",
                   options_.name, options_.peer, static_cast<double>(patience_.waited()) / 1e9,
                   links_.size());
    }
}

void Receiver::fail(int code, const char* text) {
    if (!failure_) {
        failure_.set(code, "%s: %s", options_.name, text);
        DEFT_WARN("%s", failure_.text);
    }
}

}  // namespace deft::net
