// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/sender.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "deft/abi/net.h"
#include "plugin/core/chunk_rules.h"

namespace deft::net {
namespace {

// Acknowledgements of small messages on a single path are lazy (the message is already done for
// NCCL): they are looked for only when this many are open.
constexpr std::uint64_t kLookForAcks = kSlots / 2;
// A chunk is late after this and so many times what was predicted for it: see resend_tail().
constexpr Nanos kLate = 20 * kMillisecond;
constexpr Nanos kLateTimes = 4;

}  // namespace

Sender::Sender(const SenderOptions& options, std::vector<std::unique_ptr<Dialer>> dialers,
               Nanos now)
    : options_(options),
      ahead_(options.gpu_messages ? Ahead{0, 0} : ahead_of_receives(dialers.size())),
      copies_(dialers.size() == 1 && options_.early_done && !dialers[0]->capabilities().granted),
      prober_(options.probe_token),
      started_(now),
      patience_(options.link_timeout) {
    for (Slot& slot : slots_) {
        slot.kind = Request::Kind::Send;
        slot.owner = this;
    }
    for (auto& dialer : dialers) {
        auto link = std::make_unique<PathSlot>();
        link->sender = this;
        link->index = links_.size();
        link->dialer = std::move(dialer);
        link->retry_at = now;
        link->carrier = link->dialer->carrier();
        link->can = link->dialer->capabilities();
        link->can.inline_bytes = options.gpu_messages ? 0 : link->can.inline_bytes;
        link->domain = link->dialer->domain();
        link->gives_way_to = link->dialer->gives_way_to();
        if (link->can.granted) {
            link->grants = std::make_unique<Grants>();
        }
        if (link->can.granted || link->can.fenced) {
            fencing_ = true;
        }
        links_.push_back(std::move(link));
    }
}

bool Sender::may_send(const Slot& slot) const {
    if (slot.message < posted_) {
        return true;
    }
    if (slot.size > ahead_.each || slot.message >= posted_ + kEagerAhead) {
        return false;
    }
    return slot.before + slot.size - slots_[posted_ % kSlots].before <= ahead_.all;
}

// The kernel has all of it.
bool Sender::written(const Slot& slot) const {
    return slot.chunks != 0 && slot.pending == 0 && (only_ == nullptr || !only_->path->writing());
}

bool Sender::done(const Slot& slot) const {
    if (slot.delivered) {
        return !fencing_ || !open_work(slot);
    }
    return slot.copied && written(slot);
}

// Where a copy of the next message may stay until it is acknowledged; NULL: there is no room, or it
// is not worth it.
std::byte* Sender::room_for_copy(std::size_t size, Nanos now) {
    if (!copies_.any() || size > kLoneBytes) {
        return nullptr;
    }
    if (size <= kEagerBytes) {
        return copies_.small(next_message_);
    }
    if (held_ > 0) {  // with others on their way it is cheaper to lend the kernel its pages
        return nullptr;
    }
    std::byte* const room = copies_.lone(next_message_, size, oldest_);
    if (room != nullptr) {
        return room;
    }
    progress(now);
    return copies_.lone(next_message_, size, oldest_);
}

// With one path a message alone is done once the kernel has it, as with NCCL's own transport; the
// copy is there to send it again if the path has to be made anew. It is made when the peer has
// something to do already.
void Sender::take_copy(Slot& slot) {
    if (slot.copy == nullptr || slot.copied || slot.delivered || !written(slot)) {
        return;
    }
    if (slot.size > 0) {
        std::memcpy(slot.copy, slot.data, slot.size);
    }
    slot.data = slot.copy;
    slot.copied = true;
}

Request* Sender::isend(const void* data, std::size_t size, Nanos now, const Region* region) {
    Slot& slot = this->slot(next_message_);
    // may_send() looks at the first message without credit.
    const auto full = [&] {
        return slot.held || !slot.delivered || next_message_ >= posted_ + kSlots;
    };
    if (full()) {
        progress(now);
        if (full()) {
            return nullptr;
        }
    }
    if (oldest_ == next_message_) {
        busy_from_ = now;
    }
    slot.on_gpu = region != nullptr && region->memory().kind == Memory::Kind::Device;
    slot.staged = 0;
    slot.copy = slot.on_gpu ? nullptr : room_for_copy(size, now);
    slot.copied = false;
    slot.message = next_message_++;
    slot.before = bytes_;
    bytes_ += size;
    slot.data = static_cast<const std::byte*>(data);
    slot.region = region;
    slot.size = size;
    slot.chunks = 0;
    slot.pending = 1;
    slot.acknowledged = slot.resent = 0;
    slot.delivered = false;
    slot.held = true;
    ++held_;
    now_ = now;
    pump(now);
    take_copy(slot);
    fresh_ = links_.size() == 1;
    return &slot;
}

bool Sender::test(Request* request, Nanos now, std::size_t* size) {
    Slot& slot = static_cast<Slot&>(*request);
    // Right after an isend it is too early for news, and a sender that keeps a link busy is short
    // of time: the next call looks.
    if (done(slot) ? next_message_ - oldest_ > kLookForAcks : !fresh_) {
        progress(now);
    }
    fresh_ = false;
    take_copy(slot);
    if (!done(slot)) {
        return false;
    }
    if (size != nullptr) {
        *size = slot.size;
    }
    held_ -= slot.held ? 1 : 0;
    slot.held = false;
    return true;
}

void Sender::progress(Nanos now) {
    now_ = now;
    if (retired_) {
        return;
    }
    for (auto& link : links_) {
        if (link->path && !rests(*link, now)) {
            poll_link(*link, now, true);
        }
    }
    if (fencing_) {
        drive_fences(now);
    }
    pump(now);
    if (now >= next_timers_) {
        timers(now);
    }
    if (failure_) {
        retire();
    }
}

std::uint64_t Sender::moved() const {
    std::uint64_t sum = completed_ + oldest_;
    for (const auto& link : links_) {
        sum += link->first_flight + link->next_flight;
    }
    return sum;
}

// Gives chunks to paths until there is nothing to give, no credit, or the best path has no room:
// waiting for the best path is then better than using another one.
void Sender::pump(Nanos now) {
    while (next_unsent_ < next_message_) {
        Slot& slot = this->slot(next_unsent_);
        if (slot.message != next_unsent_ || slot.delivered || slot.pending == 0) {
            ++next_unsent_;
            continue;
        }
        if (usable_ == 0 || !may_send(slot) || (unproven_ > 1 && proving(slot, now))) {
            return;
        }
        if (slot.chunks == 0) {
            cut(slot);
        }
        PathSlot* link = choose(slot, now);
        if (link == nullptr || !post(*link, slot, now)) {
            return;
        }
    }
}

// A chunk of a GPU's memory where a path can read it, until the message is delivered. NULL: it
// cannot be got. Allocates: such a path carries a GPU's memory only where no other does.
const std::byte* Sender::staged(Slot& slot, const Chunk& chunk) {
    if (slot.staging == nullptr) {
        slot.staging.reset(new std::byte[slot.size]);  // pages that are never used cost nothing
    }
    std::byte* const at = slot.staging.get() + chunk.offset;
    const std::uint64_t chunks = bits_of(chunk);
    if ((slot.staged & chunks) != chunks) {
        if (options_.gpu == nullptr || !options_.gpu->get(at, chunk.data, chunk.length)) {
            return nullptr;
        }
        slot.staged |= chunks;
    }
    return at;
}

// True if pump() should go on.
bool Sender::post(PathSlot& link, Slot& slot, Nanos now) {
    if (link.in_flight() == kFlights) {
        return false;
    }
    const std::uint64_t may = fencing_ ? permitted(link, slot) : slot.pending;
    if (may == 0) {
        return false;
    }
    const auto index = static_cast<std::uint16_t>(__builtin_ctzll(may));
    const std::uint64_t run =
        link.can.run_bytes > 0 && fencing_ && needs_grant(link, slot) ? run_of(link, slot, may) : 1;
    Chunk chunk;
    chunk.message = slot.message;
    chunk.total = slot.size;
    chunk.chunk_size = slot.chunk_size;
    chunk.index = index;
    chunk.offset = std::uint64_t{index} * slot.chunk_size;
    chunk.length = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(run * slot.chunk_size, slot.size - chunk.offset));
    chunk.kept = slot.copy != nullptr;
    chunk.data = slot.data + chunk.offset;
    if (slot.on_gpu && !link.can.granted && chunk.length > 0) {
        chunk.data = staged(slot, chunk);
        if (chunk.data == nullptr) {
            fail(DEFT_NET_SYSTEM_ERROR, "a message could not be copied from the GPU's memory");
            return false;
        }
    }
    if (fencing_ && needs_grant(link, slot)) {
        chunk.region = slot.region;
        chunk.grant = link.grants->find(slot.message);
        if (slot.size > chunk.grant->capacity) {
            fail(DEFT_NET_INVALID_USAGE, "a message is larger than the peer's receive buffer");
            return false;
        }
    }
    switch (link.path->post(chunk)) {
        case Post::Again:
            return false;
        case Post::Failed:
            lose(link, link.path->failure(), now);
            return true;  // another path may take it
        case Post::Ok:
            break;
    }
    if (link.in_flight() == 0) {
        link.busy_since = now;
        link.last_progress = now;
    }
    const std::uint64_t chunks = bits_of(chunk);
    slot.pending &= ~chunks;
    link.flights[link.next_flight++ % kFlights] = {
        slot.message, chunks, chunk.length, now,
        link.rate.measured() ? now + kLate + kLateTimes * link.rate.predicted(chunk.length)
                             : kNever};
    link.rate.posted(chunk.length, now);
    link.full_size.posted(chunk.length);
    LinkCounters& counters = link.dialer->counters();
    counters.bytes_sent.fetch_add(chunk.length, std::memory_order_relaxed);
    counters.chunks_sent.fetch_add(run, std::memory_order_relaxed);
    return true;
}

// False if the path was lost.
bool Sender::poll_link(PathSlot& link, Nanos now, bool reading) {
    link.looked_before = link.looked;
    link.looked = now;
    const Path::Poll polled = link.path->poll(link, reading);
    if (polled == Path::Poll::Failed) {
        lose(link, link.path->failure(), now);
        return false;
    }
    link.rests_until = polled == Path::Poll::Idle ? now + kStreamRests : 0;
    return true;
}

void Sender::on_control(PathSlot& link, const Control& control) {
    // What acknowledges itself does so with its work requests. Those of a lost path are answered
    // for by its fence.
    const bool counts = control.kind != Control::Kind::PathDown &&
                        control.kind != Control::Kind::Fenced && !link.can.acknowledges &&
                        !link.fence.is_open();
    on_counts(link, counts ? control.received : 0, control.completed, control.posted);
    on_end(link, control);
}

// `received` is a claim of the peer: never more than what was posted.
void Sender::on_counts(PathSlot& link, std::uint64_t received, std::uint64_t completed,
                       std::uint64_t posted) {
    const std::uint64_t first = link.first_flight;
    const std::uint64_t oldest = oldest_;
    bool proven = false;
    while (link.first_flight < std::min(received, link.next_flight)) {
        const Flight& flight = link.flights[link.first_flight++ % kFlights];
        link.rate.acknowledged(flight.length, flight.posted_at, now_);
        proven = link.full_size.carried(flight.length) || proven;
        if (flight.message == kProbe) {
            // With nothing to send neither end may have looked for a while. Else the answer may
            // have waited for this look: then it took less.
            if (flight.posted_at >= busy_from_) {
                link.rate.probed(flight.length,
                                 std::max<Nanos>(0, link.looked_before - flight.posted_at), now_);
            }
            continue;
        }
        patience_.moved();
        link.delivered += flight.length;
        Slot& slot = this->slot(flight.message);
        if (slot.message == flight.message && !slot.delivered) {
            acknowledge(slot, flight.chunks);
        }
    }
    posted_ = std::max(posted_, posted);
    completed_ = std::max(completed_, std::min(completed, next_message_));
    for (; oldest_ < next_message_; ++oldest_) {
        Slot& slot = this->slot(oldest_);
        if (!slot.delivered && oldest_ < completed_) {
            deliver(slot);
        }
        if (!slot.delivered) {
            break;
        }
    }
    if (oldest_ != oldest) {
        patience_.moved();
    }
    // Only acknowledgements show that bytes get through: the way back may work while this one does
    // not.
    if (link.first_flight != first) {
        link.last_progress = now_;
        link.damaged = false;
        if (link.state == PathState::Suspect) {
            apply(link, PathEvent::Progress, "acknowledgements came again");
            keep(link);
        }
    }
    if (proven) {
        count_usable();
    }
    if (link.in_flight() == 0) {
        idle(link, now_);
    }
}

// A path or the whole connection that the peer has ended.
void Sender::on_end(const PathSlot& link, const Control& control) {
    if (control.kind == Control::Kind::PathDown && control.path < links_.size()) {
        PathSlot& gone = *links_[control.path];
        if (&gone != &link && gone.path && gone.incarnation == control.received) {
            lose(gone, "the peer lost this link", now_);
        }
    }
    if (control.kind == Control::Kind::Fenced && control.path < links_.size()) {
        on_fenced(control);
    }
    if (control.kind == Control::Kind::Bye) {
        peer_bye_ = true;
        if (oldest_ < next_message_ && held()) {
            fail(DEFT_NET_REMOTE_ERROR, "the peer closed the connection before it had everything");
        }
    }
}

void Sender::acknowledge(Slot& slot, std::uint64_t chunks) {
    slot.acknowledged |= chunks;
    slot.pending &= ~chunks;
    const std::uint64_t all =
        slot.chunks == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << slot.chunks) - 1;
    if (slot.acknowledged == all) {
        deliver(slot);
    }
}

void Sender::deliver(Slot& slot) {
    slot.delivered = true;
    slot.pending = 0;
    // Its bytes may change from now on; a path that was still sending a second copy must not look
    // at them again.
    for (auto& link : links_) {
        if (link->path && link->path->writing()) {
            link->path->abandon(slot.message);
        }
    }
    slot.staging.reset();
}

}  // namespace deft::net
