// SPDX-License-Identifier: Apache-2.0
// What a receiver owes to paths that write into its memory: grants, and the word that nothing more
// of a lost one will land.
#include <unistd.h>

#include <algorithm>

#include "deft/abi/net.h"
#include "plugin/core/chunk_rules.h"
#include "plugin/core/receiver.h"

namespace deft::net {

std::vector<std::shared_ptr<Domain>> Receiver::domains() const {
    return domains_;
}

// Lets the sender write on this path what is posted and has not been granted there.
void Receiver::grant(PathSlot& link) {
    link.granted = std::max(link.granted, completed_);
    for (; link.granted < posted_; ++link.granted) {
        const Slot& slot = this->slot(link.granted);
        if (slot.complete || slot.capacity <= link.can.inline_bytes) {
            continue;  // whose region may be gone, too
        }
        const Registration* const registration =
            slot.region == nullptr ? nullptr : slot.region->in(link.path->domain());
        Grant grant;
        grant.message = slot.message;
        grant.on_gpu = slot.on_gpu;
        if (registration != nullptr) {
            grant.address = reinterpret_cast<std::uintptr_t>(slot.data);
            grant.capacity = slot.capacity;
            grant.key = registration->remote_key;
        }
        switch (link.path->grant(grant)) {
            case Post::Again:
                return;
            case Post::Failed:
                lose(link, link.path->failure(), now_);
                return;
            case Post::Ok:  // which is credit, too
                link.credited = link.granted + 1;
                announced_ = links_.size() == 1 ? link.granted + 1 : announced_;
                break;
        }
    }
}

void Receiver::grant_all() {
    for (auto& link : links_) {
        if (link->can.granted && link->path) {
            grant(*link);
        }
    }
}

// The bytes are where they belong already. What was complete, or here, nobody may write again: a
// sender that does overwrites what NCCL has been told is there.
PathEvents::Place Receiver::landed(PathSlot& link, const Chunk& chunk) {
    if (chunk.message < completed_ || chunk.message >= posted_ ||
        judge(chunk) != PathEvents::Place::Store ||
        (slot(chunk.message).arrived & bits_of(chunk)) != 0) {
        return PathEvents::Place::Refuse;
    }
    // What a lost stream had brought of it before its receive was posted is worth nothing.
    Early& waiting = early(chunk.message);
    waiting.begun = waiting.begun && waiting.message != chunk.message;
    Slot& slot = this->slot(chunk.message);
    slot.written |= slot.on_gpu && chunk.length > 0 ? std::uint32_t{1} << link.index : 0;
    take_chunk(link, chunk);
    return PathEvents::Place::Store;
}

// Put aside: who is polled now must not be ended.
void Receiver::fence_asked(std::uint16_t path, std::uint32_t incarnation) {
    if (path < links_.size()) {
        PathSlot& link = *links_[path];
        link.asked = std::max(link.asked, incarnation);
        link.barred = std::max(link.barred, incarnation);
        fences_ = true;
    }
}

void Receiver::begin_fence(PathSlot& link) {
    if (link.can.fenced && !link.fenced.path) {
        link.fenced.receiver = this;
        link.fenced.link = &link;
        link.fenced.incarnation = link.incarnation;
        link.fenced.received = link.received;
        link.fenced.path = std::move(link.path);
        fences_ = true;
        return;
    }
    // Not fenced: nothing of it lands any more. Or a second one while one is ending: of that the
    // sender makes no use before it has the answer.
    link.path->close(0);
    link.path.reset();
    keep_count(link, link.incarnation, link.received);
}

// The sender asks for one incarnation at a time, the last that it used. On those after it nothing
// came.
void Receiver::keep_count(PathSlot& link, std::uint32_t incarnation, std::uint64_t received) {
    if (received > 0) {
        link.kept_incarnation = incarnation;
        link.kept_received = received;
    }
}

void Receiver::drive_fences(Nanos now) {
    fences_ = false;
    for (auto& link : links_) {
        if (link->asked != 0 && link->path && link->incarnation <= link->asked) {
            lose(*link, "the sender has lost it", now);
        }
        FencedPath& fenced = link->fenced;
        if (fenced.path && fenced.path->fence(fenced)) {
            fenced.path->close(0);
            fenced.path.reset();
            keep_count(*link, fenced.incarnation, fenced.received);
        }
        if (link->asked != 0 && !fenced.path && answer_fence(*link)) {
            link->asked = 0;
        }
        fences_ = fences_ || fenced.path || link->asked != 0;
    }
}

// On every path that has room, as with the loss of one; who does not hear it asks again.
bool Receiver::answer_fence(const PathSlot& link) {
    Control answer;
    answer.kind = Control::Kind::Fenced;
    answer.path = static_cast<std::uint16_t>(link.index);
    answer.incarnation = link.asked;
    answer.received = link.asked == link.kept_incarnation ? link.kept_received : 0;
    bool said = false;
    for (auto& other : links_) {
        if (other->path && other->path->send(answer) == Post::Ok) {
            said = true;
        }
    }
    return said;
}

// Before NCCL gets memory back that messages may still be written to: waits until nothing can be,
// within `limit`.
void Receiver::fence_all(Nanos limit) {
    for (auto& link : links_) {
        if (link->path && link->can.granted) {
            begin_fence(*link);
            link->state = PathState::Down;
        }
    }
    const Nanos deadline = steady_now() + limit;
    for (bool waits = true; waits && steady_now() < deadline;) {
        waits = false;
        for (auto& link : links_) {
            if (link->fenced.path && link->fenced.path->fence(link->fenced)) {
                link->fenced.path->close(0);
                link->fenced.path.reset();
            }
            waits = waits || link->fenced.path;
        }
        if (waits) {
            ::usleep(50);
        }
    }
}

}  // namespace deft::net
