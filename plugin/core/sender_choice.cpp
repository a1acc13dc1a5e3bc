// SPDX-License-Identifier: Apache-2.0
// Which path takes what: how a message is cut, who gets the next piece of it, and how large that
// piece is.
#include <algorithm>
#include <bit>

#include "plugin/core/chunk_rules.h"
#include "plugin/core/sender.h"

namespace deft::net {
namespace {

// For the receiver's permission to use the best path, while another one could carry the message.
constexpr Nanos kGrantPatience = 20 * kMillisecond;
// And where the others would have to copy the message out of a GPU's memory, or into it.
constexpr Nanos kGpuPatience = 200 * kMillisecond;
// No more than this counts between two looks: the process, or the whole machine, stood still.
constexpr Nanos kStoodStill = 2 * kMillisecond;

}  // namespace

struct Sender::Outlooks {
    std::array<PathOutlook, 16> paths;
    std::array<bool, 16> waits{};  // for its grant, and has no other reason
    std::size_t count = 0;

    int best(std::uint64_t bytes) const {
        return earliest_finish(std::span(paths.data(), count), bytes);
    }
};

void Sender::cut(Slot& slot) {
    double fastest = 0;
    std::size_t count = 0;
    for (const auto& link : links_) {
        if (takes(*link)) {
            fastest = std::max(fastest, link->rate.bytes_per_second());
            ++count;
        }
    }
    slot.chunk_size = slot.size == 0 ? 0 : chunk_bytes(slot.size, count, fastest);
    slot.chunks =
        slot.size == 0
            ? 1
            : static_cast<std::uint16_t>((slot.size + slot.chunk_size - 1) / slot.chunk_size);
    slot.pending = slot.chunks == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << slot.chunks) - 1;
}

// The message is in a GPU's memory at either end, as far as is known: grants tell. It then goes by
// a granted path if there is any, also one that is left out.
bool Sender::streams_copy(const Slot& slot) const {
    if (!fencing_ || !options_.gpu_messages || slot.on_gpu) {
        return fencing_ && slot.on_gpu;
    }
    for (const auto& link : links_) {
        const Grant* const grant = link->grants ? link->grants->find(slot.message) : nullptr;
        if (grant != nullptr) {
            return grant->on_gpu;
        }
    }
    return true;
}

// What each path promises for the slot's next chunk. `wait`: also those whose grant is on its way.
// What the first choice cannot carry goes by the next: a GPU's memory by paths that can read it,
// then by the others; by those that were not left out, then by all.
Sender::Outlooks Sender::outlooks(const Slot& slot, bool wait) const {
    Outlooks all;
    all.count = std::min(links_.size(), all.paths.size());
    bool any = false;
    const bool on_gpu = streams_copy(slot);
    const int choices = !fencing_ ? 1 : on_gpu ? 4 : 2;
    for (int choice = 0; choice < choices && !any; ++choice) {
        const bool left_out = fencing_ && choice % 2 == 1;
        const bool staging = !on_gpu || choice >= 2;
        for (std::size_t i = 0; i < all.count; ++i) {
            const PathSlot& link = *links_[i];
            all.waits[i] = wait && grant_is_coming(link, slot);
            const bool carries =
                (staging || link.can.granted) && (!fencing_ || all.waits[i] || reaches(link, slot));
            const bool usable = carries && (left_out ? sound(link) : takes(link));
            all.paths[i] = {usable, link.rate.bytes_per_second(), link.rate.outstanding(),
                            link.rate.latency()};
            any = any || usable;
        }
    }
    return all;
}

// Of the paths that the slot's next chunk may go by, the one that finishes it first. NULL: none, or
// that one still waits for its grant. Credit may come sooner over another path, and that must not
// take the whole message for it.
Sender::PathSlot* Sender::choose(const Slot& slot, Nanos now) {
    if (only_ != nullptr && (!fencing_ || reaches(*only_, slot)) &&
        (only_->can.granted || !streams_copy(slot))) {
        return only_;
    }
    const Outlooks all = outlooks(slot, fencing_ && patient(slot, now));
    const int best = all.best(slot.chunk_size);
    if (best < 0 || all.waits[static_cast<std::size_t>(best)]) {
        return nullptr;
    }
    return links_[static_cast<std::size_t>(best)].get();
}

// A grant comes with the receive it is for. One that does not come says that its path is not what
// it seems, which its peer may find out in a second only.
bool Sender::patient(const Slot& slot, Nanos now) {
    if (waits_for_ != slot.message) {
        waits_for_ = slot.message;
        waited_ = 0;
    } else {
        waited_ += std::min(now - waited_at_, kStoodStill);
    }
    waited_at_ = now;
    return waited_ < (options_.gpu_messages ? kGpuPatience : kGrantPatience);
}

// How many neighbouring chunks the path takes as one piece: as many as would come its way if they
// were given away one by one. The others' share is what lies behind.
std::size_t Sender::run_of(const PathSlot& link, const Slot& slot, std::uint64_t may) const {
    const auto together = static_cast<std::size_t>(std::countr_one(may >> std::countr_zero(may)));
    const std::size_t most =
        std::clamp<std::size_t>(link.can.run_bytes / slot.chunk_size, 1, together);
    if (only_ == &link || most == 1) {
        return most;
    }
    Outlooks all = outlooks(slot, false);
    all.paths[link.index].queued += slot.chunk_size;
    std::size_t run = 1;
    for (int others = std::popcount(may) - 1; others > 0 && run < most; --others) {
        const int best = all.best(slot.chunk_size);
        if (best < 0) {
            break;
        }
        run += static_cast<std::size_t>(best) == link.index ? 1 : 0;
        all.paths[static_cast<std::size_t>(best)].queued += slot.chunk_size;
    }
    return run;
}

// Each look at a stream is a system call. Next to a path that is looked at without one, a stream
// that had nothing to say is left alone for a moment.
bool Sender::rests(const PathSlot& link, Nanos now) const {
    return granted_up_ > 0 && !link.can.granted && now < link.rests_until;
}

}  // namespace deft::net
