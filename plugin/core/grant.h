// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "plugin/core/request.h"

namespace deft::net {

// The receiver's permission to write one message straight into its posted buffer, for one path. The
// same message may be granted any number of times, with the same values on one path. A capacity of
// 0 refuses: the memory is not registered there.
struct Grant {
    std::uint64_t message = 0;
    std::uint64_t address = 0;   // at the receiver, of the message's first byte
    std::uint64_t capacity = 0;  // bytes from there on
    std::uint32_t key = 0;       // of that memory in the path's protection domain at the receiver
    bool on_gpu = false;         // it is a GPU's
};

// What a sender was granted on one incarnation of a path.
class Grants {
public:
    void put(const Grant& grant) {
        entries_[grant.message % kSlots] = {grant, grant.capacity > 0};
        through_ = std::max(through_, grant.message + 1);
    }
    const Grant* find(std::uint64_t message) const {
        const Entry& entry = entries_[message % kSlots];
        return entry.given && entry.grant.message == message ? &entry.grant : nullptr;
    }
    // Whether this message, or a later one, was granted or refused.
    bool through(std::uint64_t message) const { return message < through_; }
    void clear() {
        entries_ = {};
        through_ = 0;
    }

private:
    struct Entry {
        Grant grant;
        bool given = false;
    };
    std::array<Entry, kSlots> entries_{};
    std::uint64_t through_ = 0;
};

}  // namespace deft::net
