// SPDX-License-Identifier: Apache-2.0
// Send, receive, and the broadcasts of AllGatherV.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "softdev/nccl_kernels/primitives.h"
#include "softdev/nccl_kernels/works.h"

namespace softdev::nccl_kernels {
namespace {

const nccl::Reduction kBytes{nccl::Arithmetic::kSum, ncclUint8, 0, nullptr};

unsigned reverse_bits(unsigned value, unsigned count) {
    unsigned reversed = 0;
    for (; count > 1; count /= 2, value /= 2) {
        reversed = reversed * 2 + value % 2;
    }
    return reversed;
}

// A message in one direction, or this channel's part of it.
struct Part {
    bool exists = false;
    std::byte* address = nullptr;
    std::size_t bytes = 0;
    int peer = -1;
    std::size_t chunk = 0;
    bool low_latency = false;
};

std::size_t decode_chunk(std::uint8_t code) {
    const std::size_t exponent = code >> 3;
    const std::size_t mantissa = code & 7;
    return exponent == 0 ? mantissa : (mantissa | 8) << (exponent - 1);
}

Part part_of(const Channel& channel, const std::byte* work, bool receive) {
    const std::size_t which = receive ? 1 : 0;
    const unsigned channels = load<std::uint8_t>(work, message_work::kChannels);
    const unsigned first = load<std::uint8_t>(work, message_work::kFirstChannel);
    const std::size_t parts = load<std::uint8_t>(work, message_work::kParts + which);
    unsigned number = (static_cast<unsigned>(channel.number()) - first) & (channels - 1);
    if (channel.layout().reversed_parts) {
        number = reverse_bits(number, channels);
    }
    Part part;
    part.exists = number < parts;
    if (!part.exists) {
        return part;
    }
    const auto all = load<std::size_t>(work, message_work::kSize + which * sizeof(std::size_t));
    constexpr std::size_t kPage = 4096;
    const std::size_t share = divide_up(divide_up(all, parts), kPage) * kPage;
    const std::size_t begin = std::min(number * share, all);
    part.bytes = std::min(begin + share, all) - begin;
    part.address = load<std::byte*>(work, message_work::kAddress + which * sizeof(void*)) + begin;
    part.peer = load<int>(work, message_work::kRank + which * sizeof(int));
    part.chunk = decode_chunk(load<std::uint8_t>(work, message_work::kChunk + which));
    const unsigned flags = load<std::uint8_t>(work, message_work::kFlags);
    part.low_latency = (flags >> which & message_work::kLowLatency) != 0;
    if ((flags >> which & message_work::kRegistered) != 0) {
        throw std::runtime_error("registered buffers are not emulated");
    }
    return part;
}

// One direction of one message: its moves, one after the other. An empty message is one move.
class Transfer {
public:
    Transfer(const Channel& channel, const Part& part, bool receive)
        : part_(part), receive_(receive) {
        const int peer[2] = {part.peer, -1};
        const int nobody[1] = {-1};
        const Primitives::Shape shape{part.low_latency ? Protocol::ll : Protocol::simple,
                                      {1, 1},
                                      1,
                                      part.low_latency ? 0 : channel.message_step_bytes(),
                                      1};
        primitives_ = std::make_unique<Primitives>(
            channel, shape, kBytes,
            receive ? std::span<const int>(peer) : std::span<const int>(nobody),
            receive ? std::span<const int>(nobody) : std::span<const int>(peer));
        begin();
    }

    bool over() const { return over_; }

    /// True: something moved.
    bool advance() {
        if (over_ || !primitives_->advance()) {
            return false;
        }
        at_ += move_.elements;
        over_ = at_ >= part_.bytes;
        if (!over_) {
            begin();
        }
        return true;
    }

private:
    void begin() {
        move_ = Move{};
        move_.elements = std::min(part_.chunk, part_.bytes - at_);
        if (receive_) {
            move_.receive = true;
            move_.output = part_.address + at_;
        } else {
            move_.send = true;
            move_.input = part_.address + at_;
        }
        primitives_->begin(move_);
    }

    Part part_;
    bool receive_;
    std::unique_ptr<Primitives> primitives_;
    Move move_;
    std::size_t at_ = 0;
    bool over_ = false;
};

}  // namespace

bool run_messages(const Channel& channel, std::span<const std::byte* const> works) {
    std::vector<Transfer> transfers;
    transfers.reserve(works.size() * 2);
    for (const std::byte* work : works) {
        const Part send = part_of(channel, work, false);
        const Part receive = part_of(channel, work, true);
        if (send.exists && send.peer == channel.rank()) {
            if (receive.exists && send.bytes > 0 && send.address != receive.address) {
                std::memmove(receive.address, send.address, send.bytes);
            }
            continue;
        }
        if (send.exists) {
            transfers.emplace_back(channel, send, false);
        }
        if (receive.exists) {
            transfers.emplace_back(channel, receive, true);
        }
    }
    Patience patience;
    for (;;) {
        bool over = true;
        bool moved = false;
        for (Transfer& transfer : transfers) {
            if (transfer.advance()) {
                moved = true;
            }
            if (!transfer.over()) {
                over = false;
            }
        }
        if (over) {
            return true;
        }
        if (moved) {
            patience.reset();
        } else if (channel.aborted()) {
            return false;
        } else {
            patience.wait();
        }
    }
}

bool run_broadcasts(const Channel& channel, Protocol protocol,
                    std::span<const std::byte* const> works) {
    const int previous[2] = {channel.previous(), -1};
    const int next[2] = {channel.next(), -1};
    Primitives primitives(channel, {protocol, {1, 1}, 1, 0, 0}, kBytes, previous, next);
    std::vector<std::size_t> done(works.size());
    for (bool over = false; !over;) {
        over = true;
        for (std::size_t i = 0; i < works.size(); ++i) {
            const std::byte* work = works[i];
            const std::size_t left = load<std::size_t>(work, broadcast_work::kSize) - done[i];
            const auto chunk = static_cast<std::size_t>(load<int>(work, broadcast_work::kChunk));
            const int depth = load<int>(work, broadcast_work::kDepth);
            Move move;
            move.elements = std::min(left, chunk);
            if (move.elements == 0) {
                continue;
            }
            move.receive = depth > 0;
            move.send = depth < channel.ranks() - 1;
            move.output = load<std::byte*>(work, broadcast_work::kOutput) + done[i];
            if (depth == 0) {
                take_own(move, load<const std::byte*>(work, broadcast_work::kInput) + done[i],
                         move.output);
            }
            if (!primitives.run(move)) {
                return false;
            }
            done[i] += move.elements;
            if (move.elements < left) {
                over = false;
            }
        }
    }
    return true;
}

}  // namespace softdev::nccl_kernels
