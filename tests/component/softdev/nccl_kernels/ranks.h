// SPDX-License-Identifier: Apache-2.0
// Communicators of several ranks in one process, laid out as NCCL's host code would, with step
// buffers that both ends share. Launches run on a thread for each rank.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "softdev/nccl_kernels/kernel.h"
#include "softdev/nccl_kernels/layout.h"

namespace softdev::nccl_kernels::test {

constexpr std::size_t kBufferBytes[3] = {8 * 1024, 8 * 32 * 1024, 8 * 4096};
constexpr std::size_t kMessageStep = 2048;

template <class T>
void put(void* base, std::size_t offset, T value) {
    std::memcpy(static_cast<std::byte*>(base) + offset, &value, sizeof value);
}

/// What one end of a connection writes and the other reads.
struct Wire {
    alignas(64) std::uint64_t head = 0;
    alignas(64) std::uint64_t tail = 0;
    std::vector<std::byte> buffers[3];
};

class Ranks {
public:
    Ranks(int version, int ranks, int channels)
        : layout_(*layout_of(version)), ranks_(ranks), channels_(channels) {
        release_.layout = &layout_;
        release_.functions = list_functions(layout_.gathers_unequally);
        for (int rank = 0; rank < ranks; ++rank) {
            members_.push_back(make_member(rank));
        }
        for (int channel = 0; channel < channels; ++channel) {
            connect(channel);
        }
    }

    const Layout& layout() const { return layout_; }
    const Release& release() const { return release_; }
    int ranks() const { return ranks_; }
    int channels() const { return channels_; }
    std::byte* communicator(int rank) { return members_[at(rank)].communicator.data(); }
    void abort(int rank) { std::atomic_ref<std::uint32_t>(*members_[at(rank)].abort).store(1); }

    std::uint32_t number(const Function& wanted) const {
        const auto found =
            std::find_if(release_.functions.begin(), release_.functions.end(),
                         [&](const auto& f) { return describe(f) == describe(wanted); });
        if (found == release_.functions.end()) {
            throw std::runtime_error("no function " + describe(wanted));
        }
        return static_cast<std::uint32_t>(found - release_.functions.begin());
    }

    /// The argument block of a launch in which each channel has these batches of works.
    struct Batch {
        batch::Kind kind = batch::collective;
        std::uint32_t function = 0;
        std::vector<std::vector<std::byte>> works;
    };
    std::vector<std::byte> arguments(int rank, const std::vector<Batch>& batches) {
        std::vector<std::byte> block(4096);
        put(block.data(), arguments::kCommunicator, communicator(rank));
        put(block.data(), arguments::kChannelMask, (std::uint64_t{1} << channels_) - 1);
        std::size_t end = arguments::kBatches +
                          batches.size() * static_cast<std::size_t>(channels_) * batch::kBytes;
        for (std::size_t b = 0; b < batches.size(); ++b) {
            const std::size_t works = end;
            for (const auto& work : batches[b].works) {
                if (end + work.size() > block.size()) {
                    throw std::runtime_error("too many works");
                }
                std::memcpy(block.data() + end, work.data(), work.size());
                end += work.size();
            }
            for (int channel = 0; channel < channels_; ++channel) {
                const std::size_t index = b * static_cast<std::size_t>(channels_) + at(channel);
                std::byte* entry = block.data() + arguments::kBatches + index * batch::kBytes;
                const bool last = b + 1 == batches.size();
                put<std::uint32_t>(entry, batch::kFlags,
                                   (last ? 0 : static_cast<std::uint32_t>(channels_)) |
                                       static_cast<std::uint32_t>(batches[b].kind) << 15 |
                                       batches[b].function << 17);
                put(entry, batch::kBase, static_cast<std::uint32_t>(works));
                put(entry, batch::kSet, (std::uint64_t{1} << batches[b].works.size()) - 1);
            }
        }
        return block;
    }

    /// Runs a launch on every rank at the same time.
    void launch(std::vector<std::vector<std::byte>> blocks) {
        std::vector<std::thread> threads;
        for (auto& block : blocks) {
            threads.emplace_back([&] {
                run_kernel(release_, block.data(), [](const char* why) { ADD_FAILURE() << why; });
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
    }

    /// A collective's work. The elements are shared out as evenly as the middle channels allow.
    std::vector<std::byte> collective(const void* input, void* output, std::size_t elements,
                                      std::size_t element_bytes, std::size_t chunk_grains,
                                      int root = 0, std::uint64_t argument = 0) const {
        std::vector<std::byte> work(layout_.work_bytes);
        put<std::uint32_t>(work.data(), collective_work::kFlags,
                           static_cast<std::uint32_t>(channels_ - 1) << 8);
        put(work.data(), collective_work::kRoot, root);
        put(work.data(), layout_.input, input);
        put(work.data(), layout_.output, output);
        const std::size_t granule = 16 / element_bytes;
        const std::size_t share = elements / at(channels_) / granule * granule;
        std::uint64_t shares[4] = {};
        if (channels_ == 1) {
            shares[0] = elements;
        } else {
            shares[0] = share;
            shares[1] = channels_ > 2 ? share : 0;
            shares[2] = elements - share * at(channels_ - 1);
        }
        shares[3] = chunk_grains | chunk_grains << 21 | chunk_grains << 42;
        std::memcpy(work.data() + layout_.shares, shares, sizeof shares);
        put(work.data(), layout_.argument, argument);
        return work;
    }

private:
    struct Member {
        std::vector<std::byte> communicator;
        std::unique_ptr<std::uint32_t> abort = std::make_unique<std::uint32_t>(0);
        // By channel: the peers' connections, two to send and two to receive each.
        std::vector<std::vector<std::byte>> connections;
        std::vector<std::vector<std::byte*>> peers;
        std::vector<std::vector<int>> ring;
    };

    static std::size_t at(int i) { return static_cast<std::size_t>(i); }

    Member make_member(int rank) const {
        Member member;
        member.communicator.resize(communicator::kChannels + 64 * channel::kBytes);
        std::byte* c = member.communicator.data();
        put(c, communicator::kRank, rank);
        put(c, communicator::kRanks, ranks_);
        for (std::size_t p = 0; p < 3; ++p) {
            put(c, communicator::kBufferBytes + p * 4, static_cast<int>(kBufferBytes[p]));
        }
        put(c, communicator::kMessageStepBytes, static_cast<int>(kMessageStep));
        put(c, communicator::kAbort, member.abort.get());
        for (int channel = 0; channel < channels_; ++channel) {
            member.connections.emplace_back(at(ranks_) * 4 * connection::kBytes);
            member.peers.emplace_back();
            for (int peer = 0; peer < ranks_; ++peer) {
                member.peers.back().push_back(member.connections.back().data() +
                                              at(peer) * 4 * connection::kBytes);
            }
            member.ring.emplace_back();
        }
        return member;
    }

    // A ring that differs from channel to channel, a binary tree, and a wire for each pair.
    void connect(int channel) {
        std::vector<int> order;
        for (int i = 0; i < ranks_; ++i) {
            order.push_back(channel % 2 == 0 ? i : ranks_ - 1 - i);
        }
        for (int index = 0; index < ranks_; ++index) {
            const int rank = order[at(index)];
            Member& member = members_[at(rank)];
            auto& ring = member.ring[at(channel)];
            for (int i = 0; i < ranks_; ++i) {
                ring.push_back(order[at((index + i) % ranks_)]);
            }
            std::byte* c = member.communicator.data() + communicator::kChannels +
                           at(channel) * channel::kBytes;
            put(c, channel::kPeers, member.peers[at(channel)].data());
            put(c, channel::kRing + ring::kPrevious, ring.back());
            put(c, channel::kRing + ring::kNext, ring[at(1 % ranks_)]);
            put(c, channel::kRing + ring::kUserRanks, ring.data());
            put(c, channel::kRing + layout_.ring_index, index);
            put(c, layout_.tree + tree::kUp, rank == 0 ? -1 : (rank - 1) / 2);
            for (int child = 0; child < tree::kMostDown; ++child) {
                const int number = 2 * rank + 1 + child;
                put(c, layout_.tree + tree::kDown + at(child) * 4,
                    child < 2 && number < ranks_ ? number : -1);
            }
        }
        for (int from = 0; from < ranks_; ++from) {
            for (int to = 0; to < ranks_; ++to) {
                for (std::size_t index = 0; index < 2; ++index) {
                    join(channel, from, to, index);
                }
            }
        }
    }

    void join(int channel, int from, int to, std::size_t index) {
        wires_.push_back(std::make_unique<Wire>());
        Wire& wire = *wires_.back();
        std::byte* const ends[2] = {
            members_[at(from)].peers[at(channel)][at(to)] + index * connection::kBytes,
            members_[at(to)].peers[at(channel)][at(from)] + (2 + index) * connection::kBytes};
        for (std::size_t p = 0; p < 3; ++p) {
            wire.buffers[p].resize(kBufferBytes[p] + 128);
        }
        for (std::byte* end : ends) {
            for (std::size_t p = 0; p < 3; ++p) {
                auto start = reinterpret_cast<std::uintptr_t>(wire.buffers[p].data());
                start = (start + 127) / 128 * 128;
                put(end, connection::kBuffers + p * 8, start);
            }
            put(end, connection::kTail, &wire.tail);
            put(end, connection::kHead, &wire.head);
            put(end, connection::kStepBytes,
                static_cast<int>(index == 0 ? kBufferBytes[2] / kSteps : kMessageStep));
        }
    }

    const Layout& layout_;
    int ranks_;
    int channels_;
    Release release_;
    std::vector<Member> members_;
    std::vector<std::unique_ptr<Wire>> wires_;
};

}  // namespace softdev::nccl_kernels::test
