// SPDX-License-Identifier: Apache-2.0
#include "shim/nccl/registry.h"

#include <sched.h>

namespace deft {
namespace {

std::size_t hash_of(deft_nccl_comm_t comm) {
    return static_cast<std::size_t>(
        (reinterpret_cast<std::uintptr_t>(comm) * 0x9E3779B97F4A7C15u) >> 40);
}

// Marks a slot whose communicator is gone; no allocator returns this address.
deft_nccl_comm_t tombstone() {
    return reinterpret_cast<deft_nccl_comm_t>(std::uintptr_t{1});
}

// Held for a few stores. In a child forked at just that moment it stays held for ever: the wait has
// an end, and what cannot be changed is passed through.
class Changing {
public:
    explicit Changing(std::atomic_flag& flag) : flag_(flag) {
        constexpr int kPatience = 100'000;
        for (int i = 0; i < kPatience && !held_; ++i) {
            held_ = !flag_.test_and_set(std::memory_order_acquire);
            if (!held_) {
                ::sched_yield();
            }
        }
    }
    ~Changing() {
        if (held_) {
            flag_.clear(std::memory_order_release);
        }
    }
    Changing(const Changing&) = delete;
    explicit operator bool() const { return held_; }

private:
    std::atomic_flag& flag_;
    bool held_ = false;
};

}  // namespace

Registry& Registry::process() {
    static constinit Registry registry;
    return registry;
}

Registry::Slot* Registry::slot_of(deft_nccl_comm_t comm) noexcept {
    const std::size_t start = hash_of(comm);
    for (std::size_t i = 0; i < kSlots; ++i) {
        Slot& slot = slots_[(start + i) % kSlots];
        const deft_nccl_comm_t key = slot.key.load(std::memory_order_acquire);
        if (key == comm) {
            return &slot;
        }
        if (key == nullptr) {
            return nullptr;
        }
    }
    return nullptr;
}

CommunicatorPin Registry::find(deft_nccl_comm_t comm) noexcept {
    if (comm == nullptr || comm == tombstone()) {
        return {};
    }
    for (int attempt = 0; attempt < 8; ++attempt) {
        Slot* const slot = slot_of(comm);
        if (slot == nullptr) {
            return {};
        }
        Communicator* const entry = slot->entry.load(std::memory_order_acquire);
        if (entry == nullptr) {
            return {};
        }
        // The memory is never freed, so taking the pin is safe even if the entry has just been
        // given to another communicator; only then is it the wrong one.
        entry->pins.fetch_add(1, std::memory_order_acq_rel);
        CommunicatorPin pin(entry);
        if (entry->handle.load(std::memory_order_acquire) == comm) {
            return pin;
        }
    }
    return {};
}

Communicator* Registry::free_entry() noexcept {
    for (std::size_t i = 0; i < kCapacity; ++i) {
        Communicator& entry = entries_[next_entry_++ % kCapacity];
        std::uint32_t unused = 0;
        if (entry.pins.compare_exchange_strong(unused, 1, std::memory_order_acq_rel)) {
            return &entry;
        }
    }
    return nullptr;
}

void Registry::drop(Slot& slot) noexcept {
    Communicator* const entry = slot.entry.exchange(nullptr, std::memory_order_acq_rel);
    slot.key.store(tombstone(), std::memory_order_release);
    if (entry != nullptr) {
        entry->handle.store(nullptr);  // in one order with what hooks store in the entry
        entry->pins.fetch_sub(1, std::memory_order_release);
        size_.fetch_sub(1, std::memory_order_relaxed);
    }
    // Tombstones at the end of a chain are no stepping stones any more.
    for (std::size_t at = static_cast<std::size_t>(&slot - slots_.data());
         slots_[(at + 1) % kSlots].key.load() == nullptr && slots_[at].key.load() == tombstone();
         at = (at + kSlots - 1) % kSlots) {
        slots_[at].key.store(nullptr, std::memory_order_release);
    }
}

CommunicatorPin Registry::add(deft_nccl_comm_t comm, const NcclTable* table, std::uint64_t hash,
                              int rank, int nranks) noexcept {
    if (comm == nullptr || comm == tombstone()) {
        return {};
    }
    const Changing lock(changing_);
    if (!lock) {
        return {};
    }
    if (Slot* const stale = slot_of(comm)) {
        drop(*stale);
    }
    Communicator* const entry = free_entry();
    if (entry == nullptr) {
        return {};
    }
    entry->table = table;
    entry->hash = hash;
    entry->serial = last_serial_.fetch_add(1) + 1;
    entry->rank = rank;
    entry->nranks = nranks;
    entry->device = -1;
    entry->splits = 0;
    entry->asked = 0;
    for (auto& calls : entry->numbered_calls) {
        calls = 0;
    }
    entry->tuned_calls = 0;
    entry->tuned_history = 0;
    entry->council = nullptr;
    entry->origin = nullptr;
    entry->suspensions = 0;
    entry->parent = nullptr;
    entry->director = nullptr;
    entry->network = nullptr;
    entry->shares = false;
    entry->choices = nullptr;
    entry->began_ns = 0;
    entry->made_in_ns = 0;
    entry->ended = Communicator::Ended::No;
    entry->handle.store(comm, std::memory_order_release);
    const std::size_t start = hash_of(comm);
    for (std::size_t i = 0; i < kSlots; ++i) {
        Slot& slot = slots_[(start + i) % kSlots];
        const deft_nccl_comm_t key = slot.key.load(std::memory_order_relaxed);
        if (key == nullptr || key == tombstone()) {
            slot.entry.store(entry, std::memory_order_release);
            slot.key.store(comm, std::memory_order_release);
            break;
        }
    }
    size_.fetch_add(1, std::memory_order_relaxed);
    entry->pins.fetch_add(1, std::memory_order_acq_rel);  // the caller's; the first is the table's
    return CommunicatorPin(entry);
}

void Registry::remove(deft_nccl_comm_t comm) noexcept {
    if (comm == nullptr || comm == tombstone()) {
        return;
    }
    const Changing lock(changing_);
    if (!lock) {
        return;
    }
    if (Slot* const slot = slot_of(comm)) {
        drop(*slot);
    }
}

bool Registry::remove(deft_nccl_comm_t comm, const Communicator* entry) noexcept {
    const Changing lock(changing_);
    if (!lock) {
        return true;  // passed through
    }
    Slot* const slot = slot_of(comm);
    if (slot == nullptr || slot->entry.load(std::memory_order_acquire) != entry) {
        return false;
    }
    drop(*slot);
    return true;
}

}  // namespace deft
