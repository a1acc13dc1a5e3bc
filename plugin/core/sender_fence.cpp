// SPDX-License-Identifier: Apache-2.0
// What a sender owes to paths that write into the receiver's memory: grants, and fences before
// anything that a lost path has had goes elsewhere.
#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "deft/abi/net.h"
#include "plugin/core/sender.h"

namespace deft::net {

std::vector<std::shared_ptr<Domain>> Sender::domains() const {
    std::vector<std::shared_ptr<Domain>> all;
    for (const auto& link : links_) {
        if (link->domain != nullptr &&
            std::find(all.begin(), all.end(), link->domain) == all.end()) {
            all.push_back(link->domain);
        }
    }
    return all;
}

bool Sender::reaches(const PathSlot& link, const Slot& slot) const {
    return permitted(link, slot) != 0;
}

// All that the path waits for is the receiver's permission, which is on its way: it gives them in
// the order of messages, refused ones included.
bool Sender::grant_is_coming(const PathSlot& link, const Slot& slot) const {
    const bool wanted = streams_copy(slot) ? sound(link) : takes(link) && !left_out(link);
    return slot.message < posted_ && wanted && needs_grant(link, slot) &&
           !link.grants->through(slot.message) && slot.region != nullptr &&
           slot.region->in(link.domain.get()) != nullptr;
}

// Which of the slot's pending chunks may go by this path. What a stream has had may land again only
// through the receiver's own hands, which know what is there: other streams may have it at once.
// The writes of a granted path ask nobody. So a chunk is on such a path alone: it comes there from
// a lost path, and from there to another, only once the lost one is fenced.
std::uint64_t Sender::permitted(const PathSlot& link, const Slot& slot) const {
    if (needs_grant(link, slot) &&
        (link.grants->find(slot.message) == nullptr || slot.region == nullptr ||
         slot.region->in(link.domain.get()) == nullptr)) {
        return 0;
    }
    std::uint64_t may = slot.pending;
    const std::uint64_t again = slot.pending & slot.resent;
    if (again == 0) {
        return may;
    }
    for (const auto& other : links_) {
        const bool lands = other->fence.unanswered() || other->state == PathState::Up;
        if (other.get() != &link && lands && (other->can.fenced || link.can.granted)) {
            may &= ~(again & other->carries(slot.message));
        }
    }
    return may;
}

// A work request of this message is open: a NIC may read its memory (again), however complete the
// message is at the receiver.
bool Sender::open_work(const Slot& slot) const {
    return std::any_of(links_.begin(), links_.end(), [&](const auto& link) {
        const bool reads = link->fence.reading() || (link->path && !link->fence.is_open());
        return link->can.granted && reads && link->carries(slot.message) != 0;
    });
}

void Sender::on_grant(PathSlot& link, const Grant& grant) {
    if (link.grants != nullptr) {
        link.grants->put(grant);  // of no bytes: a refusal
        posted_ = std::max(posted_, grant.message + 1);
    }
}

// Instead of forgetting what a lost path had.
void Sender::open_fence(PathSlot& link, Nanos now) {
    if (link.grants != nullptr) {
        link.grants->clear();
    }
    // With a fence open the path that is lost is one that was not used. Another one that was not is
    // fenced all the same: so the receiver never has two to end, of which the second was used.
    const bool used = (link.next_flight != 0 || link.can.fenced) && !link.fence.is_open();
    if (!link.can.fenced) {
        if (used) {
            requeue(link);
        }
        link.path->close(0);
        link.path.reset();
    }
    if (used && (link.can.fenced || link.in_flight() > 0)) {
        link.fence.open(std::move(link.path), link.incarnation, now);
    } else if (!link.fence.is_open()) {
        link.first_flight = link.next_flight = 0;
    }
    if (link.path) {
        (void)link.path->retract();
        link.path->close(0);
        link.path.reset();
    }
    link.copies_end = 0;
}

// So much came of what a lost path had; the rest goes elsewhere.
void Sender::on_fenced(const Control& control) {
    PathSlot& link = *links_[control.path];
    if (!link.fence.answered(control.incarnation)) {
        return;
    }
    if (control.received < link.first_flight) {
        char text[320];
        std::snprintf(text, sizeof(text),
                      "%s has acknowledged %llu chunks of which the peer got %llu: the link has "
                      "lost data",
                      link.dialer->describe(), static_cast<unsigned long long>(link.first_flight),
                      static_cast<unsigned long long>(control.received));
        fail(DEFT_NET_REMOTE_ERROR, text);
        return;
    }
    // Flights stay where they are: their work requests may be open.
    for (std::uint64_t i = link.first_flight; i < std::min(control.received, link.next_flight);
         ++i) {
        const Flight& flight = link.flights[i % kFlights];
        Slot& slot = this->slot(flight.message);
        if (flight.message != kProbe && slot.message == flight.message && !slot.delivered) {
            link.delivered += flight.length;
            acknowledge(slot, flight.chunks);
        }
    }
    on_counts(link, 0, 0, 0);
    requeue(link);
    close_fence(link, now_);
}

// Once both ends are through with what was lost.
void Sender::close_fence(PathSlot& link, Nanos now) {
    if (link.fence.is_open()) {
        return;
    }
    DEFT_DEBUG("path %s of %s: fenced after %.1f ms", link.dialer->describe(), options_.name,
               static_cast<double>(now - link.fence.opened()) / kMillisecond);
    link.first_flight = link.next_flight = link.copies_end = 0;
    if (link.path) {
        use(link, now);
    }
}

// On every path that has room. False: on none, as in the middle of a chunk on a stream.
bool Sender::ask_for(const PathSlot& lost) {
    bool asked = false;
    for (auto& other : links_) {
        if (other->path && other->path->ask_fence(static_cast<std::uint16_t>(lost.index),
                                                  lost.fence.incarnation()) == Post::Ok) {
            asked = true;
        }
    }
    return asked;
}

// No path may be up: the next one that is connected puts the question.
void Sender::drive_fences(Nanos now) {
    for (auto& link : links_) {
        if (!link->fence.is_open()) {
            continue;
        }
        link->fence.retract();
        if (link->fence.ask_due(now) && ask_for(*link)) {
            link->fence.put(now);
        }
        close_fence(*link, now);
    }
}

}  // namespace deft::net
