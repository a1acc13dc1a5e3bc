// SPDX-License-Identifier: Apache-2.0
// Simple: the sender writes the bytes and then counts up the connection's tail. LL: 4 bytes of
// payload and a flag make a word of 8. LL128: 120 bytes of payload and a flag of 8 make a line. The
// receiver counts up the head. A flag is the number of the step, plus one.
//
// In LL128 the payload lies in the lines in its own order, where a GPU's threads shuffle it for
// their registers. Both ends of a connection are this code, so nobody can see it.
#include "softdev/nccl_kernels/primitives.h"

#include <algorithm>

namespace softdev::nccl_kernels {
namespace {

constexpr std::size_t kLine = 16;  // of LL
constexpr std::size_t kLineData = 8;
constexpr std::size_t kLongLine = 128;  // of LL128
constexpr std::size_t kLongLineData = 120;
// What the threads of a GPU move together; the proxy is told sizes in these units.
constexpr std::size_t kLinesTogether = 16;
// Steps at which LL writes all flags of a slot, so that no old one looks new when they wrap.
constexpr std::uint64_t kCleaning = 0x7ffffff8;

std::size_t round_up(std::size_t n, std::size_t to) {
    return divide_up(n, to) * to;
}

std::uint64_t load_word(std::byte* at) {
    return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at))
        .load(std::memory_order_acquire);
}

void store_word(std::byte* at, std::uint64_t word) {
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at))
        .store(word, std::memory_order_release);
}

bool cleans(std::uint64_t step) {
    return (step & kCleaning) == kCleaning;
}

}  // namespace

Primitives::Primitives(const Channel& channel, const Shape& shape, const nccl::Reduction& reduction,
                       std::span<const int> from, std::span<const int> to)
    : channel_(channel), shape_(shape), reduction_(reduction), step_bytes_(shape.step_bytes) {
    if (step_bytes_ == 0) {
        step_bytes_ = channel.buffer_bytes(shape.protocol) / kSteps;
    }
    const std::uint64_t whole = shape.slicing.slices_per_chunk * shape.slicing.steps_per_slice;
    const auto open = [&](std::vector<End>& ends, Connection connection) {
        End end;
        end.connection = connection;
        end.step = connection.step();
        if (!low_latency()) {
            end.step = round_up(end.step, whole);
        }
        ends.push_back(std::move(end));
    };
    for (const int peer : from) {
        if (peer == -1) {
            break;
        }
        open(from_, channel.from(peer, shape.connection));
        if (!low_latency()) {
            // The steps that the rounding skipped are free.
            from_.back().connection.head().store(from_.back().step, std::memory_order_release);
        }
    }
    for (const int peer : to) {
        if (peer == -1) {
            break;
        }
        open(to_, channel.to(peer, shape.connection));
    }
}

Primitives::~Primitives() {
    for (const auto* ends : {&from_, &to_}) {
        for (const End& end : *ends) {
            end.connection.set_step(end.step);
        }
    }
}

std::size_t Primitives::slice_elements() const {
    if (low_latency()) {
        return move_.elements;
    }
    const std::size_t most = step_bytes_ / shape_.element_bytes * shape_.slicing.steps_per_slice;
    return std::max(divide_up(move_.elements, 16 * shape_.slicing.slices_per_chunk) * 16,
                    most / 32);
}

void Primitives::begin(const Move& move) {
    move_ = move;
    slice_ = 0;
    done_ = 0;
    for (End& end : from_) {
        end.seen = 0;
    }
}

bool Primitives::advance() {
    const std::size_t slices = low_latency() ? 1 : shape_.slicing.slices_per_chunk;
    while (slice_ < slices) {
        const std::size_t elements = std::min(slice_elements(), move_.elements - done_);
        const std::size_t bytes = elements * shape_.element_bytes;
        if (move_.send &&
            !std::all_of(to_.begin(), to_.end(), [&](const End& end) { return room(end); })) {
            return false;
        }
        if (move_.receive && !std::all_of(from_.begin(), from_.end(),
                                          [&](End& end) { return arrived(end, bytes); })) {
            return false;
        }
        move_slice(elements);
        done_ += elements;
        ++slice_;
    }
    return true;
}

bool Primitives::run(const Move& move) {
    begin(move);
    Patience patience;
    while (!advance()) {
        if (channel_.aborted()) {
            return false;
        }
        patience.wait();
    }
    return true;
}

bool Primitives::room(const End& end) const {
    const std::uint64_t steps = low_latency() ? 1 : shape_.slicing.steps_per_slice;
    return end.connection.head().load(std::memory_order_acquire) + kSteps >= end.step + steps;
}

bool Primitives::arrived(End& end, std::size_t bytes) {
    switch (shape_.protocol) {
        case Protocol::simple:
            return end.connection.tail().load(std::memory_order_acquire) >=
                   end.step + shape_.slicing.steps_per_slice;
        case Protocol::ll:
            return lines_arrived(end, bytes, kLine);
        case Protocol::ll128:
            return lines_arrived(end, bytes, kLongLine);
    }
    return false;
}

bool Primitives::lines_arrived(End& end, std::size_t bytes, std::size_t line_bytes) {
    const bool is_long = line_bytes == kLongLine;
    const std::size_t lines = divide_up(bytes, is_long ? kLongLineData : kLineData);
    const std::uint64_t flag = end.step + 1;
    std::byte* const at = place_of(end);
    for (; end.seen < lines; ++end.seen) {
        std::byte* line = at + end.seen * line_bytes;
        const bool here = is_long ? load_word(line + kLongLineData) == flag
                                  : load_word(line) >> 32 == (flag & 0xffffffff) &&
                                        load_word(line + 8) >> 32 == (flag & 0xffffffff);
        if (!here) {
            return false;
        }
    }
    return true;
}

std::byte* Primitives::place_of(const End& end) const {
    std::byte* const buffer = end.connection.buffer(shape_.protocol);
    if (low_latency()) {
        return buffer + end.step % kSteps * (channel_.buffer_bytes(shape_.protocol) / kSteps);
    }
    const std::ptrdiff_t offset = end.connection.offset(end.step);
    return buffer + (offset >= 0 ? static_cast<std::size_t>(offset)
                                 : end.step % kSteps * end.connection.step_bytes());
}

std::size_t Primitives::wire_bytes(const End& end, std::size_t bytes) const {
    switch (shape_.protocol) {
        case Protocol::simple:
            return bytes;
        case Protocol::ll:
            return cleans(end.step) ? channel_.buffer_bytes(Protocol::ll) / kSteps
                                    : divide_up(bytes, kLineData) * kLine;
        case Protocol::ll128:
            return divide_up(bytes, kLongLineData * kLinesTogether) * kLongLine * kLinesTogether;
    }
    return 0;
}

void Primitives::move_slice(std::size_t elements) {
    const std::size_t bytes = elements * shape_.element_bytes;
    if (move_.send) {
        for (const End& end : to_) {
            end.connection.tell_size(end.step, wire_bytes(end, bytes));
        }
    }
    if (elements > 0 || (move_.send && low_latency())) {
        combine(elements);
    }
    post();
}

// In the order of a GPU's kernels: the own input first, then the peers as they are listed.
void Primitives::combine(std::size_t elements) {
    const std::size_t bytes = elements * shape_.element_bytes;
    const std::size_t at = done_ * shape_.element_bytes;
    const void* received[kSteps] = {};
    int count = 0;
    if (move_.receive) {
        for (End& end : from_) {
            received[count++] = unpack(end, bytes);
        }
    }
    // The result goes to the output and to the first peer's buffer, from where others copy it.
    std::byte* targets[2] = {};
    std::size_t made = 0;
    if (move_.output != nullptr) {
        targets[made++] = move_.output + at;
    }
    const bool in_place = move_.send && !low_latency() && !to_.empty();
    if (in_place) {
        targets[made++] = place_of(to_.front());
    }
    if (made == 0) {
        scratch_.resize(std::max(scratch_.size(), bytes));
        targets[made++] = scratch_.data();
    }
    const std::byte* input = move_.input != nullptr ? move_.input + at : nullptr;
    if (elements > 0) {
        nccl::reduce(reduction_, targets[0], made > 1 ? targets[1] : nullptr, input,
                     move_.scale_input, received, count, move_.finish, elements);
    }
    for (std::size_t i = in_place ? 1 : 0; move_.send && i < to_.size(); ++i) {
        if (low_latency()) {
            pack(to_[i], targets[0], bytes);
        } else {
            std::memcpy(place_of(to_[i]), targets[0], bytes);
        }
    }
}

const std::byte* Primitives::unpack(End& end, std::size_t bytes) {
    std::byte* const wire = place_of(end);
    if (!low_latency()) {
        return wire;
    }
    end.payload.resize(std::max(end.payload.size(), round_up(bytes, kLineData)));
    if (shape_.protocol == Protocol::ll) {
        for (std::size_t i = 0; i * 4 < bytes; ++i) {
            const auto data = static_cast<std::uint32_t>(load_word(wire + i * 8));
            std::memcpy(end.payload.data() + i * 4, &data, sizeof data);
        }
    } else {
        for (std::size_t from = 0, line = 0; from < bytes; from += kLongLineData, ++line) {
            std::memcpy(end.payload.data() + from, wire + line * kLongLine,
                        std::min(kLongLineData, bytes - from));
        }
    }
    return end.payload.data();
}

void Primitives::pack(const End& end, const std::byte* payload, std::size_t bytes) const {
    std::byte* const wire = place_of(end);
    const std::size_t all = wire_bytes(end, bytes);
    const std::uint64_t flag = end.step + 1;
    if (shape_.protocol == Protocol::ll) {
        for (std::size_t i = 0; i * 8 < all; ++i) {
            std::uint32_t data = 0;
            if (i * 4 < bytes) {
                std::memcpy(&data, payload + i * 4, std::min(sizeof data, bytes - i * 4));
            }
            store_word(wire + i * 8, flag << 32 | data);
        }
        return;
    }
    for (std::size_t line = 0; line * kLongLine < all; ++line) {
        std::byte* const to = wire + line * kLongLine;
        const std::size_t from = line * kLongLineData;
        if (from < bytes) {
            std::memcpy(to, payload + from, std::min(kLongLineData, bytes - from));
        }
        store_word(to + kLongLineData, flag);
    }
}

void Primitives::post() {
    const std::uint64_t steps = low_latency() ? 1 : shape_.slicing.steps_per_slice;
    if (move_.receive) {
        for (End& end : from_) {
            end.step += steps;
            end.seen = 0;
            end.connection.head().store(end.step, std::memory_order_release);
        }
    }
    if (move_.send) {
        for (End& end : to_) {
            end.step += steps;
            // Flags tell a receiver of LL and LL128; the proxy wants the tail for LL128 too.
            if (shape_.protocol == Protocol::simple ||
                (shape_.protocol == Protocol::ll128 && end.connection.has_queue())) {
                end.connection.tail().store(end.step, std::memory_order_release);
            }
        }
    }
}

}  // namespace softdev::nccl_kernels
