// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
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
    // known, so that another one begins there. Where gradients repeat themselves the middle of an
    // iteration looks like its end: then all calls since `named`, where it was known, must be such.
    bool iteration_before(std::uint64_t ordinal, std::span<const executor::Shape> gradients,
                          std::uint64_t named) const noexcept {
        const std::size_t length = gradients.size();
        const std::uint64_t since = named < ordinal && repeats(gradients) ? ordinal - named : 0;
        std::size_t place = length;  // of the call looked at, counted back
        for (std::uint64_t left = std::max<std::uint64_t>(since, length); left > 0 && ordinal > 0;
             --left) {
            const Noted& call = calls_[--ordinal % kKept];
            if (call.ordinal != ordinal) {
                return true;
            }
            if (call.shape != gradients[--place]) {
                return false;
            }
            place = place == 0 ? length : place;
        }
        return true;
    }

private:
    struct Noted {
        std::uint64_t ordinal = ~std::uint64_t{0};
        executor::Shape shape;
    };
    static bool repeats(std::span<const executor::Shape> gradients) noexcept {
        for (std::size_t k = 1; 2 * k <= gradients.size(); ++k) {
            if (gradients.size() % k == 0 &&
                std::equal(gradients.begin() + static_cast<std::ptrdiff_t>(k), gradients.end(),
                           gradients.begin())) {
                return true;
            }
        }
        return false;
    }

    std::array<Noted, kKept> calls_{};
};

}  // namespace deft::director
