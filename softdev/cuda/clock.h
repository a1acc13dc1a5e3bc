// SPDX-License-Identifier: Apache-2.0
// Vector clocks: one component per stream, counting the operations put on it. An operation is
// ordered before another when the other's clock has reached its count; nothing here depends on when
// something really ran.
#pragma once

#include <cstdint>
#include <vector>

namespace softdev {

class VectorClock {
public:
    std::uint64_t at(std::size_t slot) const { return slot < counts_.size() ? counts_[slot] : 0; }

    std::uint64_t advance(std::size_t slot) {
        grow(slot + 1);
        return ++counts_[slot];
    }

    /// True when anything changed.
    bool join(const VectorClock& other) {
        bool changed = false;
        grow(other.counts_.size());
        for (std::size_t i = 0; i < other.counts_.size(); ++i) {
            if (other.counts_[i] > counts_[i]) {
                counts_[i] = other.counts_[i];
                changed = true;
            }
        }
        return changed;
    }

private:
    void grow(std::size_t size) {
        if (counts_.size() < size) {
            counts_.resize(size);
        }
    }

    std::vector<std::uint64_t> counts_;
};

}  // namespace softdev
