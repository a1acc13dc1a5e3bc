// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "shim/executor/script.h"

namespace deft::director {

// The last gradient calls of a communicator, executed or forwarded, of a fixed number. The thread
// of the gradient calls alone; allocates nothing.
class RecentCalls {
public:
    static constexpr std::size_t kKept = 256;

    void note(std::uint64_t ordinal, const executor::Shape& shape) noexcept {
        calls_[ordinal % kKept] = {ordinal, shape};
    }

    // True if the calls before `ordinal` were one iteration of these gradients, as far back as is
    // known, so that another one begins there.
    bool iteration_before(std::uint64_t ordinal,
                          std::span<const executor::Shape> gradients) const noexcept {
        for (std::size_t i = gradients.size(); i > 0 && ordinal > 0; --i) {
            const Noted& call = calls_[--ordinal % kKept];
            if (call.ordinal != ordinal) {
                return true;
            }
            if (call.shape != gradients[i - 1]) {
                return false;
            }
        }
        return true;
    }

private:
    struct Noted {
        std::uint64_t ordinal = ~std::uint64_t{0};
        executor::Shape shape;
    };
    std::array<Noted, kKept> calls_{};
};

}  // namespace deft::director
