// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/receiver.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/log.h"
#include "deft/abi/net.h"
#include "plugin/core/chunk_rules.h"
#include "plugin/core/copies.h"
#include "plugin/core/copy_in_order.h"

namespace deft::net {
namespace {

// On a single path small messages are done for the sender without an acknowledgement, which then
// only frees its copies: one in so many is enough.
constexpr std::uint64_t kLazyAcks = 16;
// Larger ones there share an acknowledgement, which costs a fifth of what a message of 64 KiB does.
// The sender waits for it, but has others on their way as long as more receives are posted; new
// credit that it needs brings it earlier.
constexpr std::uint64_t kSharedBytes = 256 * 1024;
constexpr Nanos kSharedFor = 200 * kMicrosecond;
// What the sender keeps a copy of is done there, too: of larger ones so many or so many bytes share
// one, which comes before the sender's room is used up.
constexpr std::uint64_t kLoneAcks = 16;
constexpr std::uint64_t kLoneAckBytes = Copies::kLone / 2;
// Below this much credit known to the sender, a posted receive is announced at once; else the next
// acknowledgement carries it.
constexpr std::uint64_t kLowCredit = 2;
// Others are announced together, for small messages before the sender has used up what it may send
// ahead: at once, as that is what it waits for, or sooner at a poll that has time for it.
constexpr std::uint64_t kAnnounceLarge = kEagerAhead / 2;
constexpr std::uint64_t kAnnounceSoon = kEagerAhead / 8 * 6;
constexpr std::uint64_t kAnnounceNow = kEagerAhead / 8 * 7;
constexpr Nanos kStreamCredit = kMillisecond;   // between two words over a stream, see can_wait()
constexpr Nanos kFarewell = 50 * kMillisecond;  // for the goodbye to leave
constexpr Nanos kFenceLimit = 300 * kMillisecond;

}  // namespace

Receiver::Receiver(const ReceiverOptions& options, std::size_t paths,
                   std::unique_ptr<PathSource> source)
    : options_(options),
      source_(std::move(source)),
      domains_(source_->domains()),
      ahead_(ahead_of_receives(paths)),
      credited_(options.gpu_messages ? Ahead{0, 0} : ahead_),
      flushes_(options.gpu_messages ? kFlushes : 0),
      early_bytes_(new std::byte[kEagerAhead * ahead_.each]),  // pages never used cost nothing
      patience_(options.link_timeout) {
    for (std::size_t i = 0; i < kEagerAhead; ++i) {
        early_[i].bytes = early_bytes_.get() + i * ahead_.each;
    }
    for (Slot& slot : slots_) {
        slot.kind = Request::Kind::Receive;
        slot.owner = this;
    }
    for (FlushSlot& flush : flushes_) {
        flush.kind = Request::Kind::Flush;
        flush.owner = this;
    }
    for (std::size_t i = 0; i < paths; ++i) {
        auto link = std::make_unique<PathSlot>();
        link->receiver = this;
        link->index = i;
        links_.push_back(std::move(link));
    }
}

Receiver::~Receiver() {
    close(0);
}

Request* Receiver::irecv(void* data, std::size_t size, bool early_done, Nanos now,
                         const Region* region) {
    now_ = now;
    Slot& slot = this->slot(posted_);
    if (slot.held || !slot.complete) {
        progress(now);
        if (slot.held || !slot.complete) {
            return nullptr;
        }
    }
    (void)early_done;  // completion is reported when it is there: nothing is gained by lying
    slot.message = posted_++;
    slot.data = static_cast<std::byte*>(data);
    slot.region = region;
    slot.on_gpu = region != nullptr && region->memory().kind == Memory::Kind::Device;
    slot.written = 0;
    slot.capacity = size;
    slot.total = 0;
    slot.arrived = 0;
    slot.known = false;
    slot.complete = false;
    slot.held = true;
    ++held_;
    // Small messages come without credit as long as they are not too far ahead of what the sender
    // knows to be posted; for one that may be large the sender waits.
    const bool came = take_early(slot);
    if (granting_) {
        grant_all();
    }
    const bool small = came || size <= credited_.each;
    const bool low = !small && announced_ < completed_ + kLowCredit;
    unannounced_bytes_ += came ? slot.total : size;
    unannounced_large_ = unannounced_large_ || !small;
    const std::uint64_t behind = posted_ - announced_;
    const std::uint64_t bytes = small ? unannounced_bytes_ : 0;
    if (low || behind >= (unannounced_large_ ? kAnnounceLarge : kAnnounceNow) ||
        (small && bytes >= credited_.all / 8 * 7)) {
        announce(now);
    } else if (behind >= kAnnounceSoon || (small && bytes >= credited_.all / 8 * 6)) {
        // At the next poll: the job may have an answer to send first.
        for (auto& link : links_) {
            link->tell = link->path != nullptr;
        }
    }
    return &slot;
}

// True if the message came before its receive was posted. Nobody may poll for this one.
bool Receiver::take_early(Slot& slot) {
    Early& waiting = early(slot.message);
    if (!waiting.full || waiting.message != slot.message) {
        return false;
    }
    waiting.full = false;
    if (waiting.size > slot.capacity) {
        fail(DEFT_NET_INVALID_USAGE, "a message is larger than its receive buffer");
        return true;
    }
    if (waiting.size > 0 && !put(slot, 0, waiting.bytes, waiting.size)) {
        return true;
    }
    slot.total = waiting.size;
    complete(slot);
    for (auto& link : links_) {
        if (link->tell && link->path) {
            tell(*link, now_);
        }
    }
    return true;
}

bool Receiver::test(Request* request, Nanos now, std::size_t* size) {
    if (request->kind == Request::Kind::Flush) {
        now_ = now;
        if (flushed(static_cast<FlushSlot&>(*request))) {
            return true;
        }
        progress(now);  // the port may have gone
        return false;
    }
    Slot& slot = static_cast<Slot&>(*request);
    if (!slot.complete) {
        now_ = now;
        poll_links(&slot, now);
        if (now >= next_timers_) {
            timers(now);
        }
        if (failure_) {
            retire();
        }
        if (!slot.complete) {
            return false;
        }
    }
    if (size != nullptr) {
        *size = slot.total;
    }
    held_ -= slot.held ? 1 : 0;
    slot.held = false;
    return true;
}

void Receiver::progress(Nanos now) {
    now_ = now;
    poll_links(nullptr, now);
    if (now >= next_timers_) {
        timers(now);
    }
    if (failure_) {
        retire();
    }
}

std::uint64_t Receiver::moved() const {
    std::uint64_t sum = completed_ + worked_;
    for (const auto& link : links_) {
        sum += link->incarnation;
    }
    return sum;
}

void Receiver::poll_links(const Slot* wanted, Nanos now) {
    for (auto& link : links_) {
        const bool rests = granted_up_ > 0 && !link->can.granted && now < link->rests_until;
        if (!link->path || rests) {
            continue;
        }
        const Path::Poll result = link->path->poll(*link, true);
        if (result == Path::Poll::Failed) {
            if (!failure_) {
                lose(*link, link->path->failure(), now);
            }
            continue;
        }
        worked_ += result == Path::Poll::Worked ? 1 : 0;
        link->rests_until = result == Path::Poll::Idle ? now + kStreamRests : 0;
        if (link->tell || (link->owed > 0 && now - link->owed_since >= kSharedFor)) {
            tell(*link, now);
        }
        if (wanted != nullptr && wanted->complete && links_.size() == 1) {
            return;
        }
    }
    if (granting_) {
        grant_all();
    }
    if (fences_) {
        drive_fences(now);
    }
}

// The peer decides what is in a chunk header: wire.cpp has checked it against itself, here it is
// checked against what was posted.
PathEvents::Place Receiver::judge(const Chunk& chunk) {
    if (chunk.message == kProbe) {
        return PathEvents::Place::Discard;
    }
    if (chunk.message < completed_) {
        return PathEvents::Place::Discard;
    }
    if (chunk.message >= posted_) {
        if (chunk.total > ahead_.each || chunk.message >= posted_ + kEagerAhead ||
            chunk.length != chunk.total) {
            fail(DEFT_NET_REMOTE_ERROR, "the peer sent a message it had no credit for");
            return PathEvents::Place::Refuse;
        }
        Early& waiting = early(chunk.message);
        if (waiting.full) {
            return PathEvents::Place::Discard;
        }
        waiting.begun = true;
        waiting.message = chunk.message;
        return PathEvents::Place::Store;
    }
    Slot& slot = this->slot(chunk.message);
    if (slot.complete || (slot.arrived >> chunk.index & 1) != 0) {
        return PathEvents::Place::Discard;
    }
    if (!slot.known) {
        if (chunk.total > slot.capacity) {
            char text[160];
            std::snprintf(text, sizeof(text),
                          "a message of %llu bytes came for a receive buffer of %llu",
                          static_cast<unsigned long long>(chunk.total),
                          static_cast<unsigned long long>(slot.capacity));
            fail(DEFT_NET_INVALID_USAGE, text);
            return PathEvents::Place::Refuse;
        }
        slot.known = true;
        slot.total = chunk.total;
        slot.chunk_size = chunk.chunk_size;
        slot.missing = chunk.total == 0
                           ? 1
                           : static_cast<std::uint16_t>((chunk.total + chunk.chunk_size - 1) /
                                                        chunk.chunk_size);
    } else if (chunk.total != slot.total || chunk.chunk_size != slot.chunk_size) {
        fail(DEFT_NET_REMOTE_ERROR, "the peer changed the size of a message");
        return PathEvents::Place::Refuse;
    }
    return PathEvents::Place::Store;
}

PathEvents::Place Receiver::place(PathSlot& link, const Chunk& chunk, std::byte*& destination) {
    const PathEvents::Place place = judge(chunk);
    if (place == PathEvents::Place::Store) {
        const Early& waiting = early(chunk.message);
        const Slot& slot = this->slot(chunk.message);
        const bool begun = waiting.begun && waiting.message == chunk.message;
        destination = begun         ? waiting.bytes
                      : slot.on_gpu ? staging_of(link, chunk)
                                    : slot.data + chunk.offset;
    }
    return place;
}

// False if another path has begun this chunk since this one did. Without checksums two may bring it
// at once: they bring the same.
bool Receiver::alone(PathSlot& link, const Chunk& chunk) {
    if (!options_.checked || links_.size() == 1) {
        return true;
    }
    if (link.reading && link.reading_message == chunk.message &&
        link.reading_index == chunk.index) {
        return !link.overtaken;
    }
    link.reading = true;
    link.overtaken = false;
    link.reading_message = chunk.message;
    link.reading_index = chunk.index;
    for (auto& other : links_) {
        other->overtaken = other->overtaken || (other.get() != &link && other->reading &&
                                                other->reading_message == chunk.message &&
                                                other->reading_index == chunk.index);
    }
    return true;
}

// A chunk is here whole.
void Receiver::take_chunk(PathSlot& link, const Chunk& chunk) {
    if (chunk.message == kProbe) {
        link.tell = true;
        return;
    }
    link.counters->bytes_received.fetch_add(chunk.length, std::memory_order_relaxed);
    // Who sends again what has come is waiting for nothing else.
    link.tell =
        link.tell || (!link.can.acknowledges && (chunk.message < completed_ || owe(link, chunk)));
    if (chunk.message < completed_) {
        return;
    }
    Early& waiting = early(chunk.message);
    const bool begun = waiting.begun && waiting.message == chunk.message;
    waiting.begun = waiting.begun && !begun;
    if (chunk.message >= posted_) {
        waiting.full = true;
        waiting.message = chunk.message;
        waiting.size = chunk.length;
        return;
    }
    Slot& slot = this->slot(chunk.message);
    const std::uint64_t bits = bits_of(chunk);
    if (slot.complete || (slot.arrived & bits) != 0) {
        return;
    }
    if (!slot.known && judge(chunk) != PathEvents::Place::Store) {
        return;
    }
    // Its receive was posted meanwhile.
    if (begun && chunk.length > 0 && !put(slot, 0, waiting.bytes, chunk.length)) {
        return;
    }
    slot.arrived |= bits;
    slot.missing -= static_cast<std::uint16_t>(std::popcount(bits));
    if (slot.missing == 0) {
        complete(slot);
    }
}

// What came on a single path is acknowledged now and then; where there are more, at once: the
// sender measures each of them by it. True if it is due now.
bool Receiver::owe(PathSlot& link, const Chunk& chunk) {
    if (links_.size() > 1) {
        return true;
    }
    if (chunk.total <= kEagerBytes) {
        return !options_.lazy_acks || link.received - link.told_received >= kLazyAcks;
    }
    if (chunk.kept) {
        link.lone_bytes += chunk.length;
        return ++link.lone >= kLoneAcks || link.lone_bytes >= kLoneAckBytes;
    }
    link.owed_since = link.owed == 0 ? now_ : link.owed_since;
    link.owed += chunk.length;
    return link.owed >= kSharedBytes;
}

void Receiver::complete(Slot& slot) {
    slot.complete = true;
    while (completed_ < posted_ && this->slot(completed_).complete) {
        ++completed_;
    }
    // With nothing more to come there may be no next call, and no other chance to tell.
    for (auto& link : links_) {
        link->tell = link->tell || (link->owed > 0 && completed_ == posted_);
    }
    // Acknowledgements of small messages are lazy. The sender may have used up the credit it knows
    // of on small ones, and wait with a large one for credit that was not worth a frame when
    // posted.
    if (unannounced_large_ && announced_ < completed_ + kLowCredit) {
        for (auto& link : links_) {
            link->tell = link->tell || link->path != nullptr;
        }
    }
}

Control Receiver::state_of(const PathSlot& link) const {
    Control control;
    control.path = static_cast<std::uint16_t>(link.index);
    control.received = link.received;
    control.completed = completed_;
    control.posted = posted_;
    return control;
}

// A path with grants brings the credit as well, and sooner: the streams next to it say so now and
// then, in case it is dead without our knowing.
bool Receiver::can_wait(const PathSlot& link, Nanos now) const {
    return granted_up_ > 0 && !link.can.granted && link.received == link.told_received &&
           now - link.told_at < kStreamCredit;
}

void Receiver::told(PathSlot& link, Nanos now) {
    link.tell = false;
    link.told_at = now;
    link.told_received = link.received;
    link.owed = link.lone = link.lone_bytes = 0;
    announced_ = posted_;
    unannounced_bytes_ = 0;
    unannounced_large_ = false;
}

bool Receiver::tell(PathSlot& link, Nanos now) {
    if (link.can.granted && link.credited == posted_) {
        told(link, now);  // by its grants, and what came it acknowledges itself
        return true;
    }
    if (can_wait(link, now)) {
        link.tell = true;
        return false;
    }
    switch (link.path->send(state_of(link))) {
        case Post::Ok:
            told(link, now);
            return true;
        case Post::Again:
            link.tell = true;
            return false;
        case Post::Failed:
            lose(link, link.path->failure(), now);
            return false;
    }
    return false;
}

// On every path that has room: one of them may be dead without our knowing.
void Receiver::announce(Nanos now) {
    for (auto& link : links_) {
        if (link->path) {
            tell(*link, now);
        }
    }
}

void Receiver::release(const void* data, std::size_t size) {
    if (inherited()) {
        return;
    }
    const auto* const begin = static_cast<const std::byte*>(data);
    for (std::uint64_t message = completed_; message < posted_; ++message) {
        const Slot& slot = this->slot(message);
        if (!slot.complete && slot.data < begin + size && begin < slot.data + slot.capacity) {
            close(failure_ ? 0 : kFarewell);
            source_.reset();
            failure_.set(DEFT_NET_INVALID_USAGE,
                         "%s: memory was deregistered while it was received into", options_.name);
            DEFT_DEBUG("%s", failure_.text);  // what an abort does
            return;
        }
    }
}

void Receiver::close(Nanos limit) {
    if (inherited()) {
        return;
    }
    const bool writable = failure_ || completed_ < posted_;
    for (auto& link : links_) {
        if (link->path) {
            if (!failure_) {
                Control bye = state_of(*link);
                bye.kind = Control::Kind::Bye;
                (void)link->path->send(bye);
            }
            if (link->can.granted && writable) {
                continue;
            }
            link->path->close(failure_ ? 0 : limit);
            link->path.reset();
        }
        link->state = PathState::Down;
    }
    fence_all(kFenceLimit);
}

// Nothing moves here any more after a failure. The peer is told at once, on what is left of the
// paths and by what it is answered when it dials; NCCL may close this end much later.
void Receiver::retire() {
    if (retired_) {
        return;
    }
    retired_ = true;
    for (auto& link : links_) {
        if (link->path) {
            Control bye = state_of(*link);
            bye.kind = Control::Kind::Bye;
            (void)link->path->send(bye);
            begin_fence(*link);
        }
        link->state = PathState::Down;
    }
    up_ = granted_up_ = 0;
    source_.reset();
}

}  // namespace deft::net
