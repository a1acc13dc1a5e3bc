// SPDX-License-Identifier: Apache-2.0
// The side table of communicators: what the shim knows about each ncclComm_t, keyed by the real
// pointer, which is never wrapped.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "shim/nccl/nccl_table.h"
#include "shim/nccl/series.h"

namespace deft {

struct ConfigChoices;
namespace agreement {
class Council;
}
namespace director {
class Director;
}

// One communicator. Filled by the hook that saw it made; rank, nranks and device may become known
// later (a nonblocking communicator answers only when it is ready) and are -1 until then.
struct Communicator {
    std::atomic<deft_nccl_comm_t> handle{nullptr};
    std::atomic<const NcclTable*> table{nullptr};  // the library that made it
    std::atomic<std::uint64_t> hash{0};            // equal on all its ranks, 0 if unknown
    std::atomic<std::uint32_t> serial{0};          // unique in this process, from 1
    // -1 until they are known; add() says so. Zero here: a table of anything else would be part of
    // the file that every preloaded process maps.
    std::atomic<int> rank{0};
    std::atomic<int> nranks{0};
    std::atomic<int> device{0};
    std::atomic<std::uint32_t> splits{0};  // so far, part of a child's hash
    std::atomic<std::uint32_t> asked{0};   // times its details were asked for
    // Calls that the job has made, by Series: the ordinal of the next.
    std::array<std::atomic<std::uint64_t>, kSeries> numbered_calls{};
    std::atomic<std::uint64_t> tuned_calls{0};    // the same of those that may be tuned
    std::atomic<std::uint64_t> tuned_history{0};  // what they were: tuning/call_history.h
    // The entry has a reference to each of the three (hooks/councils.h). Good while pinned; null:
    // no agreement.
    std::atomic<agreement::Council*> council{nullptr};
    // Of one that has been suspended: its first agreement, through which its ranks find each other
    // again. Null before.
    std::atomic<agreement::Council*> origin{nullptr};
    // Of a child: its parent's, until it is asked.
    std::atomic<agreement::Council*> parent{nullptr};
    std::atomic<std::uint32_t> suspensions{0};  // so far, equal on all its ranks
    std::atomic<director::Director*> director{
        nullptr};  // good while pinned; null: nothing is planned
    // The name its network was chosen by; null: NCCL chose. Valid for the life of the process.
    std::atomic<const char*> network{nullptr};
    std::atomic<bool> shares{false};  // its children may live on its network
    // What its configuration chooses; null: nothing. Valid for the life of the process.
    std::atomic<const ConfigChoices*> choices{nullptr};
    std::atomic<std::int64_t> began_ns{0};    // the job's call that made it; 0: not seen
    std::atomic<std::int64_t> made_in_ns{0};  // how long it took until it was ready
    enum class Ended : std::uint8_t { No, Destroyed, Aborted };
    std::atomic<Ended> ended{Ended::No};  // who is telling the library so
    std::atomic<std::uint32_t> pins{0};   // readers, and one for being registered

    // No hook holds the communicator that had this serial, nor will one: it has been removed, and
    // the last pin of it is gone.
    bool gone(std::uint32_t of) const {
        return serial.load(std::memory_order_acquire) != of ||
               (handle.load(std::memory_order_acquire) == nullptr &&
                pins.load(std::memory_order_acquire) == 0);
    }
    bool details_known() const {
        return rank.load(std::memory_order_relaxed) >= 0 &&
               nranks.load(std::memory_order_relaxed) >= 0 &&
               device.load(std::memory_order_relaxed) >= 0;
    }
};

// Holds a communicator's entry while a hook uses it; the entry's memory is not reused meanwhile,
// though the communicator itself may be destroyed by another thread.
class CommunicatorPin {
public:
    CommunicatorPin() = default;
    explicit CommunicatorPin(Communicator* entry) : entry_(entry) {}
    CommunicatorPin(CommunicatorPin&& other) noexcept : entry_(other.entry_) {
        other.entry_ = nullptr;
    }
    CommunicatorPin& operator=(CommunicatorPin&& other) noexcept {
        std::swap(entry_, other.entry_);
        return *this;
    }
    CommunicatorPin(const CommunicatorPin&) = delete;
    ~CommunicatorPin() {
        if (entry_ != nullptr) {
            entry_->pins.fetch_sub(1, std::memory_order_release);
        }
    }
    Communicator* get() const { return entry_; }
    // The entry stays pinned, until another pin is made of it.
    Communicator* release() { return std::exchange(entry_, nullptr); }
    Communicator* operator->() const { return entry_; }
    explicit operator bool() const { return entry_ != nullptr; }

private:
    Communicator* entry_ = nullptr;
};

// Fixed capacity, no allocation. Look-up takes no lock, so that it works in a forked child and in
// the thread that aborts while another is inside a hook; changes take a short one.
class Registry {
public:
    static constexpr std::size_t kCapacity = 1024;  // communicators alive at once; a power of two

    static Registry& process();

    constexpr Registry() = default;

    // Adds a communicator, replacing an entry left behind by one of the same address (whose end
    // was not seen). Empty when the table is full: the communicator is then passed through.
    CommunicatorPin add(deft_nccl_comm_t comm, const NcclTable* table, std::uint64_t hash, int rank,
                        int nranks) noexcept;
    CommunicatorPin find(deft_nccl_comm_t comm) noexcept;
    void remove(deft_nccl_comm_t comm) noexcept;
    // Only if that entry, which the caller has pinned, is still the communicator's. False: somebody
    // else has removed it, and the address may be another communicator's by now.
    bool remove(deft_nccl_comm_t comm, const Communicator* entry) noexcept;
    std::size_t size() const { return size_.load(std::memory_order_relaxed); }

private:
    // Open addressing over indices into entries_; a removed slot stays a stepping stone.
    struct Slot {
        std::atomic<deft_nccl_comm_t> key{nullptr};
        std::atomic<Communicator*> entry{nullptr};
    };
    static constexpr std::size_t kSlots = 2 * kCapacity;

    std::array<Slot, kSlots> slots_{};
    std::array<Communicator, kCapacity> entries_{};
    std::atomic<std::size_t> size_{0};
    std::atomic<std::uint32_t> last_serial_{0};
    std::size_t next_entry_ = 0;
    std::atomic_flag changing_ = ATOMIC_FLAG_INIT;

    Slot* slot_of(deft_nccl_comm_t comm) noexcept;
    Communicator* free_entry() noexcept;
    void drop(Slot& slot) noexcept;
};

}  // namespace deft
