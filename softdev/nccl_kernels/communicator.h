// SPDX-License-Identifier: Apache-2.0
// What a kernel sees of its communicator and of one channel, and how it waits.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "softdev/nccl_kernels/function.h"
#include "softdev/nccl_kernels/layout.h"

namespace softdev::nccl_kernels {

/// Waits between looks at memory that another thread or process writes: first it only looks again,
/// then it lets others run, then it sleeps a little.
class Patience {
public:
    void wait();
    void reset() { looks_ = 0; }

private:
    unsigned looks_ = 0;
};

/// One direction to or from one peer.
class Connection {
public:
    Connection() = default;
    explicit Connection(std::byte* base) : base_(base) {}

    std::byte* buffer(Protocol protocol) const;
    std::atomic_ref<std::uint64_t> tail() const { return counter(connection::kTail); }
    std::atomic_ref<std::uint64_t> head() const { return counter(connection::kHead); }
    std::size_t step_bytes() const;
    std::uint64_t step() const { return load<std::uint64_t>(base_, connection::kStep); }
    void set_step(std::uint64_t step) const {
        *place<std::uint64_t>(base_, connection::kStep) = step;
    }

    bool has_queue() const;
    /// Where the proxy wants the bytes of this step; -1: at the step's own place.
    std::ptrdiff_t offset(std::uint64_t step) const;
    void tell_size(std::uint64_t step, std::size_t bytes) const;

private:
    std::atomic_ref<std::uint64_t> counter(std::size_t at) const;
    std::byte* entry(std::uint64_t step) const;

    std::byte* base_ = nullptr;
};

/// One channel of a communicator, for one thread.
class Channel {
public:
    Channel(const Layout& layout, std::byte* communicator, int number);

    const Layout& layout() const { return *layout_; }
    int number() const { return number_; }
    int rank() const;
    int ranks() const;
    std::size_t buffer_bytes(Protocol protocol) const;
    std::size_t message_step_bytes() const;
    bool aborted() const;

    int previous() const;
    int next() const;
    int ring_index() const;
    /// Ranks in ring order, from this one on.
    std::span<const int> ring_ranks() const;
    int tree_up() const;                                     ///< -1: this is the root
    std::array<int, tree::kMostDown + 1> tree_down() const;  ///< ends with -1

    Connection to(int peer, std::size_t index) const;
    Connection from(int peer, std::size_t index) const;

    /// Tells profilers that works began or ended; `profiled` has one value for each.
    void note_started(std::span<const char> profiled) const;
    void note_completed(std::span<const char> profiled) const;

private:
    void note(std::size_t table, std::span<const char> profiled) const;
    std::byte* peer(int rank) const;

    const Layout* layout_;
    std::byte* communicator_;
    std::byte* channel_;
    int number_;
};

}  // namespace softdev::nccl_kernels
