// SPDX-License-Identifier: Apache-2.0
// How a sender ends: when it gives up, what it says until then (docs/alive.md), and its goodbye.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "deft/abi/net.h"
#include "plugin/core/quiet_warning.h"
#include "plugin/core/sender.h"

namespace deft::net {
namespace {

// A host that cannot be reached at set-up, as it or the network says: NCCL's Socket transport tries
// about as long, 5 s; an attempt that is under way ends first.
constexpr Nanos kUnreachable = 4500 * kMillisecond;
constexpr Nanos kTellOfWaiting = 60 * kSecond;
constexpr Nanos kGoodbye = 100 * kMillisecond;
constexpr Nanos kRetract = 300 * kMillisecond;  // for queues of this host to drain

}  // namespace

bool Sender::connected() const {
    return std::any_of(links_.begin(), links_.end(), [](const auto& link) {
        return link->state == PathState::Up || link->state == PathState::Suspect;
    });
}

// NCCL waits for a message that the peer has a receive for, as far as is known, or for its own
// memory. Without a path
// nobody could say that it has one.
bool Sender::waits() const {
    if (!established_ || leaving_) {
        return true;
    }
    if (!held() || !connected()) {
        return held();
    }
    if (std::any_of(links_.begin(), links_.end(),
                    [](const auto& link) { return link->fence.reading(); })) {
        return true;  // for a card to let go of what it may be reading
    }
    for (std::uint64_t message = oldest_; message < std::min(next_message_, posted_); ++message) {
        const Slot& slot = slots_[message % kSlots];
        if (slot.held && !done(slot)) {
            return true;
        }
    }
    return false;
}

void Sender::check_end(Nanos now) {
    if (failure_) {
        return;
    }
    Patience::Tick tick;
    tick.waits = waits();
    tick.dark = true;
    for (const auto& link : links_) {
        if (!link->dialer->carrier().down) {
            tick.dark = false;
        }
        if (link->state == PathState::Up) {
            tick.expected = std::max(tick.expected, link->rate.predicted(0));
        }
    }
    patience_.tick(now, tick);
    if (leaving_) {
        check_leaving();
        return;
    }
    if (!established_) {
        check_set_up();
    } else if (held() && !connected()) {
        if (peer_bye_) {
            fail(DEFT_NET_REMOTE_ERROR, "the peer closed the connection");
        } else if (evidence_.gone(now)) {
            fail(DEFT_NET_REMOTE_ERROR, evidence_.reason());
        }
    }
    if (!failure_ && (patience_.expired() || patience_.warn_due())) {
        complain(now);
    }
}

// No message has got to the peer for long: said, and at last the end.
void Sender::complain(Nanos now) {
    char links[512];
    char text[800];
    describe_links(links, sizeof(links));
    const double seconds = static_cast<double>(patience_.waited()) / 1e9;
    if (patience_.expired()) {
        std::snprintf(text, sizeof(text),
                      "no message got to the peer for %.1f s (DEFT_LINK_TIMEOUT); %s", seconds,
                      links);
        fail(DEFT_NET_REMOTE_ERROR, text);
        return;
    }
    const bool first = may_warn(options_.peer, now, Patience::kWarnEvery - kSecond);
    log::write(first ? log::Level::Warn : log::Level::Info,
               "%s: no message got to %s for %.0f s; %s. It goes on as soon as one of them carries "
               "data; until then look at these links, the switches between, and the peer's host",
               options_.name, options_.peer, seconds, links);
}

void Sender::check_set_up() {
    if (peer_bye_) {
        fail(DEFT_NET_REMOTE_ERROR, "the peer closed the connection");
        return;
    }
    if (evidence_.gone(now_)) {
        fail(DEFT_NET_REMOTE_ERROR, evidence_.reason());
        return;
    }
    bool unreachable = true;
    const PathSlot* last = nullptr;
    for (const auto& link : links_) {
        // A rank may be minutes late for its first collective: until it accepts, its host's word is
        // all there is. An abort ends the waiting.
        if (link->dialer->reached(now_) || connected()) {
            patience_.moved();
            if (!told_waiting_ && now_ - started_ > kTellOfWaiting) {
                told_waiting_ = true;
                DEFT_INFO("%s waits for the peer: its host answers, its rank has not accepted yet",
                          options_.name);
            }
            return;
        }
        if (!link->unreachable) {
            unreachable = false;
        }
        last = link.get();
    }
    if (unreachable && patience_.counted() > kUnreachable) {
        char text[320];
        std::snprintf(text, sizeof(text),
                      "the peer cannot be reached: %s: %s (see DEFT_INTERFACES)",
                      last->dialer->describe(), last->dialer->failure());
        fail(DEFT_NET_REMOTE_ERROR, text);
    }
}

void Sender::describe_links(char* text, std::size_t size) const {
    std::size_t at = 0;
    for (const auto& link : links_) {
        const bool up = link->path != nullptr;
        const int wrote = std::snprintf(text + at, size - at, "%s%s is %s: %s", at == 0 ? "" : "; ",
                                        link->dialer->describe(), to_string(link->state),
                                        up ? "no acknowledgement" : link->dialer->failure());
        if (wrote < 0 || at + static_cast<std::size_t>(wrote) >= size) {
            return;
        }
        at += static_cast<std::size_t>(wrote);
    }
}

bool Sender::reading_memory() const {
    return std::any_of(slots_.begin(), slots_.end(), [this](const Slot& slot) {
        return slot.borrows() || (slot.held && open_work(slot));
    });
}

// With one path NCCL is told that a message is sent before it has come (take_copy()). As long as
// that path lives the kernel sees to it, as with others' connections.
bool Sender::owes(Nanos limit) {
    if (inherited() || !copies_.any() || reading_memory()) {
        return false;
    }
    const Nanos deadline = steady_now() + limit;
    for (;;) {
        if (over()) {
            return false;
        }
        if (!connected() || steady_now() >= deadline) {
            return true;
        }
        if (!said_bye_ && next_unsent_ == next_message_) {
            said_bye_ = links_.front()->path->send_bye() == Post::Ok;
        }
        ::usleep(50);
        progress(steady_now());
    }
}

void Sender::leave() {
    leaving_ = true;
    held_ = 0;
    for (Slot& slot : slots_) {
        slot.held = false;
    }
    for (auto& link : links_) {
        if (link->path) {
            link->path->leave_to_kernel();
        }
    }
}

bool Sender::over() const {
    const bool posted = next_unsent_ == next_message_ && connected();
    return failure_ || peer_bye_ || gave_up_ || oldest_ == next_message_ ||
           (posted && links_.front()->path->drained());
}

void Sender::check_leaving() {
    const bool gone = peer_bye_ || (!connected() && evidence_.gone(now_));
    if (gave_up_ || (!gone && !patience_.expired())) {
        return;
    }
    gave_up_ = true;
    log::write(gone ? log::Level::Info : log::Level::Warn,
               "%s: closed with %llu messages on their way that did not get to the peer: %s",
               options_.name, static_cast<unsigned long long>(next_message_ - oldest_),
               gone ? "it is gone" : "no path carried them (DEFT_LINK_TIMEOUT)");
}

void Sender::fail(int code, const char* text) {
    if (!failure_) {
        failure_.set(code, "%s: %s", options_.name, text);
        DEFT_WARN("%s", failure_.text);
    }
}

void Sender::release(const void* data, std::size_t size) {
    if (inherited()) {
        return;
    }
    const auto* const begin = static_cast<const std::byte*>(data);
    for (const Slot& slot : slots_) {
        const bool read = slot.borrows() || (slot.held && open_work(slot));
        if (read && slot.data < begin + size && begin < slot.data + slot.size) {
            close(0);
            failure_.set(DEFT_NET_INVALID_USAGE, "%s: memory was deregistered while it was sent",
                         options_.name);
            DEFT_DEBUG("%s", failure_.text);  // what an abort does
            return;
        }
    }
}

void Sender::retract() {
    const Nanos deadline = steady_now() + kRetract;
    for (bool done = false; !done && steady_now() < deadline;) {
        done = true;
        for (auto& link : links_) {
            done = (!link->path || link->path->retract()) && done;
            link->fence.retract();
            done = !link->fence.reading() && done;
        }
        if (!done) {
            ::usleep(50);
        }
    }
}

void Sender::close(Nanos limit) {
    if (inherited()) {
        return;
    }
    const bool hard = reading_memory();
    if (hard) {
        retract();
    }
    for (auto& link : links_) {
        if (link->path) {
            if (!failure_ && !hard && !said_bye_ && link->state == PathState::Up) {
                (void)link->path->send_bye();
            }
            link->path->close(failure_ || hard ? 0 : limit);
            idle(*link, now_);
            link->path.reset();
        }
        link->fence.drop();
        link->dialer->cancel();
        end(*link);
    }
    if (options_.home != nullptr) {
        options_.home->leave();
    }
    count_usable();
}

// Its counters last longer than the connection.
void Sender::end(PathSlot& link) {
    if (link.state == PathState::Up) {
        link.dialer->counters().paths_up.fetch_sub(1, std::memory_order_relaxed);
    }
    link.state = PathState::Down;
}

// Nothing moves here any more after a failure. The peer is told at once, by the end of what is left
// of the paths and by what it is answered when it asks; NCCL may close this end much later.
void Sender::retire() {
    if (retired_) {
        return;
    }
    retired_ = true;
    for (auto& link : links_) {
        if (link->path) {
            (void)link->path->retract();
        }
        idle(*link, now_);
        link->dialer->cancel();
        end(*link);
    }
    if (options_.home != nullptr) {
        options_.home->leave();
    }
    count_usable();
}

Sender::~Sender() {
    close(leaving_ ? kGoodbye : 0);
    note_reserve(false);
    for (const auto& link : links_) {
        if (link->away_since != 0) {
            link->dialer->counters().paths_away.fetch_sub(1, std::memory_order_relaxed);
        }
    }
}

}  // namespace deft::net
