// SPDX-License-Identifier: Apache-2.0
// That the learner saves work and finds nothing else for it.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "shim/learning/cycle_learner.h"

namespace deft {
namespace {

// One call of a job; what its key does not tell depends on its place in the iteration alone.
struct Fed {
    std::uint64_t key = 0;
    bool small = false;
    std::uint64_t buffer = 0;
};

// The definition in cycle_learner.h, one call after the other, with no regard to time. Epochs are
// those of small calls.
class Definition {
public:
    explicit Definition(std::size_t max_length) : max_length_(max_length) {}

    // The length of the cycle in force after the call; 0: none.
    std::size_t feed(const Fed& call) {
        calls_.push_back(call);
        const std::size_t length = cycle_.size();
        if (length != 0 && call.key == cycle_[++since_ % length]) {
            return length;
        }
        cycle_.clear();
        for (std::size_t k = 1; k <= max_length_ && cycle_.empty(); ++k) {
            if (repeats(k) && !is_epoch(k)) {
                since_ = 0;  // the cycle from the latest call on
                for (std::size_t i = 0; i < k; ++i) {
                    cycle_.push_back(back(i == 0 ? 0 : k - i).key);
                }
            }
        }
        return cycle_.size();
    }

private:
    std::size_t max_length_;
    std::vector<Fed> calls_;
    std::vector<std::uint64_t> cycle_;
    std::size_t since_ = 0;

    const Fed& back(std::size_t distance) const { return calls_[calls_.size() - 1 - distance]; }

    bool repeats(std::size_t k) const {
        const std::size_t more = (CycleLearner::kRepeats - 1) * k;
        bool same = calls_.size() >= more + k;
        for (std::size_t i = 0; same && i < more; ++i) {
            same = back(i).key == back(i + k).key;
        }
        return same;
    }

    bool is_epoch(std::size_t length) const {
        std::vector<Fed> large;
        std::set<std::uint64_t> buffers;
        for (std::size_t i = 0; i < length; ++i) {
            if (!back(i).small) {
                large.push_back(back(i));
                buffers.insert(back(i).buffer);
            }
        }
        bool epoch = false;
        for (std::size_t k = 1; k * 4 <= large.size() && large.size() < length; ++k) {
            bool same = large.size() % k == 0;
            for (std::size_t i = k; same && i < large.size(); ++i) {
                same = large[i].key == large[i - k].key;
            }
            epoch = epoch || same;
        }
        return epoch && buffers.size() < large.size();
    }
};

// Iterations, epochs of them with small calls behind, stretches without order, one after the other.
std::vector<Fed> random_job(std::mt19937_64& random, std::size_t calls) {
    std::vector<Fed> job;
    while (job.size() < calls) {
        const std::uint64_t phase = 1000 * job.size();  // its calls are no other phase's
        const std::size_t most = random() % 4 != 0 ? 5 : 40;
        std::vector<Fed> iteration(1 + random() % most);
        for (std::size_t i = 0; i < iteration.size(); ++i) {
            const std::uint64_t key = phase + random() % 6;
            iteration[i] = {key, false, random() % 3 != 0 ? key : phase + 100 + i};
        }
        const std::vector<Fed> behind(random() % 3, Fed{phase + 50, true, phase});
        const std::size_t epochs = 1 + random() % 5;
        const std::size_t iterations = 1 + random() % 12;
        for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
            for (std::size_t i = 0; i < iterations; ++i) {
                job.insert(job.end(), iteration.begin(), iteration.end());
            }
            job.insert(job.end(), behind.begin(), behind.end());
        }
        for (std::size_t i = random() % 40; i > 0; --i) {
            job.push_back({phase + random() % 4, false, phase});
        }
    }
    return job;
}

TEST(CycleLearnerDefinition, FindsAtEachCallWhatTheDefinitionFinds) {
    std::size_t locked = 0;
    for (unsigned seed = 0; seed < 40; ++seed) {
        std::mt19937_64 random(seed);
        const std::size_t longest = 8 + random() % 120;
        CycleLearner learner(longest);
        Definition definition(longest);
        for (const Fed& call : random_job(random, 1500)) {
            const auto step = learner.feed(call.key, call.small, call.buffer);
            const std::size_t wanted = definition.feed(call);
            ASSERT_EQ(learner.stable() ? learner.cycles()[step.cycle].size() : 0, wanted) << seed;
            locked += step.locked ? 1 : 0;
        }
    }
    EXPECT_GT(locked, 1000u);
}

// However many calls a job makes: the thread that learns takes its time from the job's host.
TEST(CycleLearnerWork, ComparesAKnownCycleOnceInALongWhile) {
    for (const std::uint64_t length : {1u, 5u, 300u, 1000u}) {
        CycleLearner learner;
        const auto feed_some = [&](std::uint64_t calls) {
            const std::uint64_t before = learner.work().comparisons;
            for (std::uint64_t i = 0; i < calls; ++i) {
                learner.feed(i % length, false, i % length, 1);
            }
            return learner.work().comparisons - before;
        };
        feed_some(5 * length);
        ASSERT_TRUE(learner.stable());
        EXPECT_LE(feed_some(100 * length), 100 * length / learner.max_length() + 1) << length;
    }
}

TEST(CycleLearnerWork, LooksIntoAnEpochOnceInAWhile) {
    for (const bool small : {true, false}) {
        CycleLearner learner;
        constexpr std::uint64_t kEpochs = 100;
        constexpr std::uint64_t kGradients = 90;
        for (std::uint64_t call = 0; call < kEpochs * (kGradients + 1); ++call) {
            const std::uint64_t place = call % (kGradients + 1);
            const bool gradient = place < kGradients;
            const std::uint64_t key = gradient ? place % 3 : kGradients;
            learner.feed(key, !gradient && small, key, gradient || !small ? 1 : 0);
        }
        // Of the epoch, four times in its length at the most. Not at each call, and not of the two,
        // three and more epochs that the latest calls are as well.
        EXPECT_GE(learner.work().looks, 1u);
        EXPECT_LE(learner.work().looks, 4 * kEpochs);
    }
}

}  // namespace
}  // namespace deft
