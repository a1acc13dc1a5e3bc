// SPDX-License-Identifier: Apache-2.0
// Handles that are not addresses: kind, generation and index in one word, so that a destroyed or
// foreign handle is always recognised, even when its slot is in use again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace softdev {

enum class HandleKind : std::uint64_t {
    stream = 0x5d01,
    event = 0x5d02,
    context = 0x5d03,
    graph = 0x5d04,
    graph_exec = 0x5d05,
    module = 0x5d06,
    function = 0x5d07,
    library = 0x5d08,
    pool = 0x5d09,
    node = 0x5d0a,
    user_object = 0x5d0b,
};

enum class HandleState { live, destroyed, unknown };

/// Not synchronised: the engine's lock guards every table.
template <typename T, HandleKind kind>
class HandleTable {
public:
    void* add(std::shared_ptr<T> object) {
        std::uint64_t index;
        if (free_.empty()) {
            index = slots_.size();
            slots_.emplace_back();
        } else {
            index = free_.back();
            free_.pop_back();
        }
        slots_[index].object = std::move(object);
        return encode(index, slots_[index].generation);
    }

    /// The live object, or nullptr.
    T* find(const void* handle) const {
        const Slot* slot = slot_of(handle);
        return slot != nullptr ? slot->object.get() : nullptr;
    }
    std::shared_ptr<T> share(const void* handle) const {
        const Slot* slot = slot_of(handle);
        return slot != nullptr ? slot->object : nullptr;
    }

    std::shared_ptr<T> remove(const void* handle) {
        if (find(handle) == nullptr) {
            return nullptr;
        }
        const std::uint64_t index = index_of(handle);
        std::shared_ptr<T> object = std::move(slots_[index].object);
        slots_[index].object.reset();
        slots_[index].generation = (slots_[index].generation + 1) & 0xffffff;
        free_.push_back(index);
        return object;
    }

    HandleState state(const void* handle) const {
        if (find(handle) != nullptr) {
            return HandleState::live;
        }
        const auto bits = reinterpret_cast<std::uint64_t>(handle);
        return bits >> 48 == static_cast<std::uint64_t>(kind) && index_of(handle) < slots_.size()
                   ? HandleState::destroyed
                   : HandleState::unknown;
    }

private:
    struct Slot {
        std::shared_ptr<T> object;
        std::uint64_t generation = 1;
    };

    static std::uint64_t index_of(const void* handle) {
        return reinterpret_cast<std::uint64_t>(handle) & 0xffffff;
    }
    static void* encode(std::uint64_t index, std::uint64_t generation) {
        return reinterpret_cast<void*>(static_cast<std::uint64_t>(kind) << 48 | generation << 24 |
                                       index);
    }
    const Slot* slot_of(const void* handle) const {
        const auto bits = reinterpret_cast<std::uint64_t>(handle);
        if (bits >> 48 != static_cast<std::uint64_t>(kind)) {
            return nullptr;
        }
        const std::uint64_t index = index_of(handle);
        if (index >= slots_.size() || slots_[index].generation != (bits >> 24 & 0xffffff)) {
            return nullptr;
        }
        return &slots_[index];
    }

    std::vector<Slot> slots_;
    std::vector<std::uint64_t> free_;
};

}  // namespace softdev
