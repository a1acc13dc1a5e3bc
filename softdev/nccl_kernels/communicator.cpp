// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl_kernels/communicator.h"

#include <sched.h>

#include <chrono>
#include <thread>

namespace softdev::nccl_kernels {

void Patience::wait() {
    constexpr unsigned kLooks = 64;
    constexpr unsigned kYields = 512;
    ++looks_;
    if (looks_ < kLooks) {
        return;
    }
    if (looks_ < kYields) {
        sched_yield();
        return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

std::byte* Connection::buffer(Protocol protocol) const {
    return load<std::byte*>(
        base_, connection::kBuffers + static_cast<std::size_t>(protocol) * sizeof(void*));
}

std::size_t Connection::step_bytes() const {
    return static_cast<std::size_t>(load<int>(base_, connection::kStepBytes));
}

std::atomic_ref<std::uint64_t> Connection::counter(std::size_t at) const {
    return std::atomic_ref<std::uint64_t>(*load<std::uint64_t*>(base_, at));
}

bool Connection::has_queue() const {
    return load<std::byte*>(base_, connection::kQueue) != nullptr;
}

std::byte* Connection::entry(std::uint64_t step) const {
    return load<std::byte*>(base_, connection::kQueue) + step % kSteps * queue::kBytes;
}

std::ptrdiff_t Connection::offset(std::uint64_t step) const {
    if (!has_queue()) {
        return -1;
    }
    const auto read = [&](std::size_t at) {
        return std::atomic_ref<int>(*place<int>(entry(step), at)).load(std::memory_order_acquire);
    };
    return read(queue::kMode) == queue::kModeOffset ? read(queue::kOffset) : -1;
}

void Connection::tell_size(std::uint64_t step, std::size_t bytes) const {
    if (has_queue()) {
        std::atomic_ref<std::int64_t>(*place<std::int64_t>(entry(step), queue::kSize))
            .store(static_cast<std::int64_t>(bytes), std::memory_order_release);
    }
}

Channel::Channel(const Layout& layout, std::byte* communicator, int number)
    : layout_(&layout),
      communicator_(communicator),
      channel_(communicator + communicator::kChannels +
               static_cast<std::size_t>(number) * channel::kBytes),
      number_(number) {}

int Channel::rank() const {
    return load<int>(communicator_, communicator::kRank);
}

int Channel::ranks() const {
    return load<int>(communicator_, communicator::kRanks);
}

std::size_t Channel::buffer_bytes(Protocol protocol) const {
    return static_cast<std::size_t>(
        load<int>(communicator_,
                  communicator::kBufferBytes + static_cast<std::size_t>(protocol) * sizeof(int)));
}

std::size_t Channel::message_step_bytes() const {
    return static_cast<std::size_t>(load<int>(communicator_, communicator::kMessageStepBytes));
}

bool Channel::aborted() const {
    auto* flag = load<std::uint32_t*>(communicator_, communicator::kAbort);
    return std::atomic_ref<std::uint32_t>(*flag).load(std::memory_order_relaxed) != 0;
}

int Channel::previous() const {
    return load<int>(channel_, channel::kRing + ring::kPrevious);
}

int Channel::next() const {
    return load<int>(channel_, channel::kRing + ring::kNext);
}

int Channel::ring_index() const {
    return load<int>(channel_, channel::kRing + layout_->ring_index);
}

std::span<const int> Channel::ring_ranks() const {
    return {load<const int*>(channel_, channel::kRing + ring::kUserRanks),
            static_cast<std::size_t>(ranks())};
}

int Channel::tree_up() const {
    return load<int>(channel_, layout_->tree + tree::kUp);
}

std::array<int, tree::kMostDown + 1> Channel::tree_down() const {
    std::array<int, tree::kMostDown + 1> down;
    down.fill(-1);
    for (int i = 0; i < tree::kMostDown; ++i) {
        const auto at = static_cast<std::size_t>(i);
        down[at] = load<int>(channel_, layout_->tree + tree::kDown + at * sizeof(int));
    }
    return down;
}

std::byte* Channel::peer(int rank) const {
    const auto* peers = load<std::byte* const*>(channel_, channel::kPeers);
    return peers[rank];
}

Connection Channel::to(int rank, std::size_t index) const {
    return Connection(peer(rank) + index * connection::kBytes);
}

Connection Channel::from(int rank, std::size_t index) const {
    return Connection(peer(rank) + (connection::kPerDirection + index) * connection::kBytes);
}

void Channel::note(std::size_t table, std::span<const char> profiled) const {
    auto* records = load<std::byte*>(communicator_, table);
    std::uint64_t count = load<std::uint64_t>(channel_, layout_->work_count);
    for (const char wanted : profiled) {
        ++count;
        if (wanted == 0 || records == nullptr) {
            continue;
        }
        std::byte* entry = records + static_cast<std::size_t>(number_) * profile::kBytes +
                           count % profile::kEntries * 16;
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        *place<std::uint64_t>(entry, 8) = static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
        std::atomic_ref<std::uint64_t>(*place<std::uint64_t>(entry, 0))
            .store(count, std::memory_order_release);
    }
}

void Channel::note_started(std::span<const char> profiled) const {
    note(communicator::kStarted, profiled);
}

void Channel::note_completed(std::span<const char> profiled) const {
    note(communicator::kCompleted, profiled);
    *place<std::uint64_t>(channel_, layout_->work_count) += profiled.size();
}

}  // namespace softdev::nccl_kernels
