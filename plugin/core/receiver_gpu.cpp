// SPDX-License-Identifier: Apache-2.0
// What a receiver does with messages whose place is in a GPU's memory: paths that read from a
// socket bring them by way of host memory; what a device has written is flushed.
#include <algorithm>

#include "deft/abi/net.h"
#include "plugin/core/chunk_rules.h"
#include "plugin/core/copy_in_order.h"
#include "plugin/core/receiver.h"

namespace deft::net {
namespace {

// A read takes microseconds. On a port that has just lost its link it may take until a time-out.
constexpr Nanos kSlowRead = 50 * kMillisecond;
constexpr const char* kNoFlush =
    "what came into a GPU's memory could not be flushed: neither the port nor the CUDA driver can";

}  // namespace

// Bytes that are in host memory, to where they belong. False: the connection has failed.
bool Receiver::put(const Slot& slot, std::uint64_t offset, const std::byte* bytes,
                   std::size_t size) {
    if (!slot.on_gpu) {
        copy_in_order(slot.data + offset, bytes, size);
        return true;
    }
    if (options_.gpu != nullptr && options_.gpu->put(slot.data + offset, bytes, size)) {
        return true;
    }
    fail(DEFT_NET_SYSTEM_ERROR, "a message could not be copied to the GPU's memory");
    return false;
}

// Where this path reads its chunk to, the only one that it is at. Allocates: such a path carries a
// GPU's memory only where no other does.
std::byte* Receiver::staging_of(PathSlot& link, const Chunk& chunk) {
    if (link.staging.size() < chunk.length) {
        link.staging.resize(chunk.length);
    }
    return link.staging.data();
}

// A chunk has been read whole, to where place() has said.
void Receiver::take_read(PathSlot& link, const Chunk& chunk) {
    const bool posted = chunk.message >= completed_ && chunk.message < posted_;
    if (posted && chunk.length > 0 && slot(chunk.message).on_gpu) {
        const Early& waiting = early(chunk.message);
        const bool begun = waiting.begun && waiting.message == chunk.message;
        const Slot& slot = this->slot(chunk.message);
        const bool wanted = !slot.complete && (slot.arrived & bits_of(chunk)) == 0;
        if (wanted && !begun && !put(slot, chunk.offset, link.staging.data(), chunk.length)) {
            return;
        }
    }
    take_chunk(link, chunk);
}

// The paths that have written what is there; all, if no message is known that has come there.
std::uint32_t Receiver::written_by(const void* data) const {
    const auto* const at = static_cast<const std::byte*>(data);
    for (std::uint64_t i = 1; i <= std::min<std::uint64_t>(posted_, kSlots); ++i) {
        const Slot& slot = slots_[(posted_ - i) % kSlots];
        if (slot.complete && at >= slot.data &&
            at < slot.data + std::max<std::uint64_t>(slot.capacity, 1)) {
            return slot.written;
        }
    }
    return ~std::uint32_t{0};
}

// By the device that has written, as long as there is a path over it: one that has lost its link
// may not read either. Else by the driver, which knows all devices. Begins it; False: neither can.
Receiver::Flushing Receiver::begin_flush(const PathSlot& link, const Region& region,
                                         const void* data, FlushSlot::Read& read) {
    const Registration* const registration =
        link.flusher == nullptr ? nullptr : region.in(link.flusher->domain());
    if ((!link.path || registration == nullptr) && driver_flushes(data)) {
        return Flushing::Done;
    }
    const std::uint64_t number =
        registration == nullptr ? 0 : link.flusher->begin(*registration, data);
    if (number == 0) {
        return link.path && driver_flushes(data) ? Flushing::Done : Flushing::Impossible;
    }
    read = {link.flusher, number};
    return Flushing::Waits;
}

bool Receiver::driver_flushes(const void* data) {
    return options_.gpu != nullptr && options_.gpu->flush(data);
}

Request* Receiver::flush(const void* data, const Region& region, Nanos now) {
    now_ = now;
    const std::uint32_t written = written_by(data);
    const auto free = std::find_if(flushes_.begin(), flushes_.end(),
                                   [](const FlushSlot& each) { return !each.held; });
    if (free == flushes_.end()) {
        fail(DEFT_NET_INTERNAL_ERROR, "more flushes are open than NCCL has requests");
        return nullptr;
    }
    free->data = data;
    free->begun = now;
    free->reads = {};
    bool waits = false;
    for (const auto& link : links_) {
        const bool wrote = (written >> link->index & 1) != 0;
        if (!wrote || (!link->can.granted && !link->flusher)) {
            continue;
        }
        switch (begin_flush(*link, region, data, free->reads[link->index])) {
            case Flushing::Done:
                break;
            case Flushing::Waits:
                waits = true;
                break;
            case Flushing::Impossible:
                fail(DEFT_NET_SYSTEM_ERROR, kNoFlush);
                return nullptr;
        }
    }
    free->held = waits;
    return waits ? &*free : nullptr;
}

bool Receiver::flushed(FlushSlot& flush) {
    bool waits = false;
    for (const auto& link : links_) {
        FlushSlot::Read& read = flush.reads[link->index];
        if (read.by == nullptr) {
            continue;
        }
        const bool done = read.by->done() >= read.number;  // which finds out whether it has failed
        const bool doubtful = read.by->failed() || !link->path || now_ - flush.begun > kSlowRead;
        if (done || (doubtful && driver_flushes(flush.data))) {
            read = {};
        } else if (read.by->failed()) {
            fail(DEFT_NET_SYSTEM_ERROR, kNoFlush);
            return false;
        } else {
            waits = true;
        }
    }
    flush.held = waits;
    return !waits;
}

}  // namespace deft::net
