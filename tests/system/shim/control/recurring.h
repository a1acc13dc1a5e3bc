// SPDX-License-Identifier: Apache-2.0
// Which of three pairs of buckets a test job has whose iteration changes all the time, and how long
// an iteration takes, so that plans come into force and are ended again and again.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace deft::test {

class Recurring {
public:
    static constexpr int kPairs = 3;

    explicit Recurring(int ranks) : ranks_(ranks) {}

    // Behind every tenth iteration. `switched`: plans that came into force so far, summed over the
    // ranks. A pair stays at first until a plan for it has, which is remembered; then all change.
    void next(float switched) {
        const bool came = switched >= switched_ + static_cast<float>(ranks_);
        switched_ = came ? switched : switched_;
        idle_ = came ? 0 : idle_ + 1;
        phase_ += learning() && !came ? 0 : 1;
    }

    // In the sequence no word comes twice in a row (the differences of neighbours in that of Thue
    // and Morse): one that came three times would be a longer iteration. It begins with all three.
    std::size_t pair() const {
        return static_cast<std::size_t>(__builtin_parity(phase_ + 1) - __builtin_parity(phase_) +
                                        1);
    }

    // The ranks ask each other about a plan half a second ahead, and it begins two iterations
    // behind that. It has to come into force within ten, of which three go by until they are known
    // again. Fast once none comes any more.
    useconds_t forward_us() const {
        return learning() || idle_ < kPhasesWithoutPlan ? 260'000 : 1500;
    }

private:
    static constexpr int kPhasesWithoutPlan = 4;

    const int ranks_;
    unsigned phase_ = 0;
    int idle_ = 0;
    float switched_ = 0;

    bool learning() const { return phase_ < kPairs; }
};

}  // namespace deft::test
