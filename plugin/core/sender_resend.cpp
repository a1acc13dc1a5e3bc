// SPDX-License-Identifier: Apache-2.0
// What a sender sends a second time, and on which path: the chunks of one that is lost or late.
#include <algorithm>
#include <bit>

#include "plugin/core/sender.h"

namespace deft::net {

std::uint64_t Sender::PathSlot::carries(std::uint64_t message) const {
    std::uint64_t chunks = 0;
    for (std::uint64_t i = first_flight; i < next_flight; ++i) {
        const Flight& flight = flights[i % kFlights];
        chunks |= flight.message == message ? flight.chunks : 0;
    }
    return chunks;
}

// Everything that is on this path and not acknowledged becomes pending again, but for what another
// path that is well has too: it brings it, or is lost itself.
void Sender::requeue(PathSlot& link) {
    for (std::uint64_t message = oldest_; message < next_message_; ++message) {
        Slot& slot = this->slot(message);
        std::uint64_t again = link.carries(message) & ~slot.acknowledged & ~slot.pending;
        if (slot.delivered || again == 0) {
            continue;
        }
        for (const auto& other : links_) {
            const bool well = other.get() != &link && other->state == PathState::Up;
            const std::uint64_t carried = well ? other->carries(message) & again : 0;
            again &= ~carried;
            other->copies_end = carried != 0 ? 0 : other->copies_end;  // no mere copies any more
        }
        count_resent(link, slot, again);
        slot.pending |= again;
        slot.resent |= again;
        next_unsent_ = again != 0 ? std::min(next_unsent_, message) : next_unsent_;
    }
}

// A suspect path is well again: what it has, and nobody has taken meanwhile, comes on it.
void Sender::keep(const PathSlot& link) {
    for (std::uint64_t message = oldest_; message < next_message_; ++message) {
        this->slot(message).pending &= ~link.carries(message);
    }
}

// Chunks of this message that this path owes go over others.
void Sender::count_resent(PathSlot& link, const Slot& slot, std::uint64_t chunks) {
    std::uint64_t bytes = 0;
    for (std::uint64_t i = link.first_flight; i < link.next_flight; ++i) {
        const Flight& flight = link.flights[i % kFlights];
        if (flight.message == slot.message && (chunks & flight.chunks) == flight.chunks) {
            bytes += flight.length;
        } else if (flight.message == slot.message) {
            bytes +=
                static_cast<std::uint64_t>(std::popcount(chunks & flight.chunks)) * slot.chunk_size;
        }
    }
    link.dialer->counters().resent_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

// Something of this message should long have been acknowledged on this path.
bool Sender::late(const PathSlot& link, const Slot& slot, Nanos now) const {
    for (std::uint64_t i = link.first_flight; i < link.next_flight; ++i) {
        const Flight& flight = link.flights[i % kFlights];
        if (flight.message == slot.message && now > flight.late_at &&
            (flight.chunks & ~slot.acknowledged) != 0) {
            return true;
        }
    }
    return false;
}

// The tail waits for no path: a link that has just become slow, or loses packets, keeps the oldest
// message from its end long before it counts as silent. Where another path has nothing to do, as
// much of what is missing as it takes goes over that one, too; what comes twice is dropped. Streams
// alone: what a granted path has, or would write, is on no other (permitted()).
void Sender::resend_tail(Nanos now) {
    const bool more = next_unsent_ < next_message_ && may_send(this->slot(next_unsent_));
    if (usable_ < 2 || more || oldest_ == next_message_) {
        return;
    }
    Slot& slot = this->slot(oldest_);
    if (slot.delivered || slot.chunks == 0) {
        return;
    }
    if (const auto [idle, missing] = overdue(slot, now); idle != nullptr && missing != 0) {
        send_again(*idle, slot, missing, now);
    }
}

// Which of a message's chunks only a late path has, and the best path that has nothing to do.
std::pair<Sender::PathSlot*, std::uint64_t> Sender::overdue(const Slot& slot, Nanos now) const {
    PathSlot* idle = nullptr;
    std::uint64_t missing = 0;
    std::uint64_t elsewhere = 0;
    for (const auto& link : links_) {
        if (link->state != PathState::Up) {
            continue;  // what it had is pending, or on others
        }
        if (link->in_flight() > 0) {
            const bool hurried = !link->can.fenced && late(*link, slot, now);
            (hurried ? missing : elsewhere) |= link->carries(slot.message);
        } else if (!link->can.granted && takes(*link) &&
                   (idle == nullptr || link->rate.predicted(slot.chunk_size) <
                                           idle->rate.predicted(slot.chunk_size))) {
            idle = link.get();
        }
    }
    return {idle, missing & ~(elsewhere | slot.acknowledged)};
}

void Sender::send_again(PathSlot& idle, Slot& slot, std::uint64_t missing, Nanos now) {
    slot.pending |= missing;
    slot.resent |= missing;
    next_unsent_ = std::min(next_unsent_, slot.message);
    while (slot.pending != 0 && idle.path && post(idle, slot, now)) {
    }
    idle.copies_end = idle.next_flight;
    // The rest stays with the path that is late: pump() would think that one the best for it.
    const std::uint64_t sent = missing & ~slot.pending;
    slot.pending &= ~missing;
    for (const auto& link : links_) {
        if (link.get() != &idle && link->state == PathState::Up) {
            count_resent(*link, slot, sent);
        }
    }
}

}  // namespace deft::net
