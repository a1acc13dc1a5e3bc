// SPDX-License-Identifier: Apache-2.0
// Which of the candidates for a call wins, and after how many calls that is clear.
#include "shim/tuning/race.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace deft::tuning {
namespace {

constexpr CollectiveChoice kOwn{};
constexpr CollectiveChoice kRing{DEFT_TUNER_RING, DEFT_TUNER_SIMPLE, 0};
constexpr CollectiveChoice kTree{DEFT_TUNER_TREE, DEFT_TUNER_SIMPLE, 0};
const std::vector<CollectiveChoice> kWays{kOwn, kRing, kTree};

CollectiveChoice own_on(std::uint8_t channels) {
    return {DEFT_TUNER_UNDEF, DEFT_TUNER_UNDEF, channels};
}
const std::vector<CollectiveChoice> kChannels{kOwn, own_on(4), own_on(2), own_on(1)};

// A call takes as many milliseconds as `base` says of its candidate, with this much noise.
class Job {
public:
    Job(std::vector<CollectiveChoice> candidates, std::vector<double> base, double noise = 0.01,
        unsigned seed = 1)
        : candidates_(std::move(candidates)),
          base_(std::move(base)),
          random_(seed),
          shake_(1 - noise, 1 + noise),
          race_(candidates_) {}

    // Until nothing is in doubt.
    Race::Verdict run(std::uint32_t rounds = kRounds) {
        race_.look(part(kLookRounds, true));
        while (race_.open()) {
            race_.take(part(rounds, false));
            ++parts_;
        }
        return race_.verdict();
    }
    std::vector<std::uint64_t> part(std::uint32_t rounds, bool connects) {
        const std::vector<CollectiveChoice> left = race_.choices();
        std::vector<std::uint64_t> times;
        for (std::uint32_t i = 0; i < rounds * left.size(); ++i) {
            const CollectiveChoice& choice = left[Table::candidate_of(i, left.size())];
            const double ms = base_of(choice) * shake_(random_);
            times.push_back(static_cast<std::uint64_t>(ms * 1e6));
            if (connects && i < left.size()) {
                times.back() *= 50;
            }
        }
        return times;
    }
    Race& race() { return race_; }
    int parts() const { return parts_; }  // behind the look

private:
    double base_of(const CollectiveChoice& choice) const {
        const auto at = std::find(candidates_.begin(), candidates_.end(), choice);
        return base_[static_cast<std::size_t>(at - candidates_.begin())];
    }

    std::vector<CollectiveChoice> candidates_;
    std::vector<double> base_;
    std::mt19937 random_;
    std::uniform_real_distribution<double> shake_;
    Race race_;
    int parts_ = 0;
};

TEST(Race, IsWonByTheFastestAndNoTimeOfTheFirstRoundCounts) {
    Job job(kWays, {10, 8, 7});
    const Race::Verdict verdict = job.run();
    EXPECT_EQ(verdict.choice, kTree);
    EXPECT_NEAR(verdict.first_ms, 10, 0.5);
    EXPECT_NEAR(verdict.chosen_ms, 7, 0.5);
    EXPECT_EQ(job.parts(), 1) << "that was clear";
}

TEST(Race, EndsAtTheLookWhereAllOthersAreFarSlower) {
    Job job(kWays, {10, 16, 20});
    const Race::Verdict verdict = job.run();
    EXPECT_EQ(verdict.choice, kOwn);
    EXPECT_NEAR(verdict.first_ms, 10, 0.5);
    EXPECT_EQ(job.parts(), 0);
}

TEST(Race, EndsSoonWhereAllOthersAreSlowerOrAlike) {
    Job slower(kWays, {10, 11, 12});
    EXPECT_EQ(slower.run().choice, kOwn);
    EXPECT_EQ(slower.parts(), 1);
    EXPECT_EQ(slower.race().choices().size(), 1u) << "they have dropped out";
    Job alike(kWays, {10, 9.9, 10.05}, 0.001);
    EXPECT_EQ(alike.run().choice, kOwn);
    EXPECT_EQ(alike.parts(), 1) << "less than 3 % is not looked for";
}

// What seems to be faster and is not clear is tried again, but not without end.
TEST(Race, GoesOnWhileAWayIsInDoubt) {
    int parts = 0;
    for (unsigned seed = 1; seed <= 50; ++seed) {
        Job job({kOwn, kTree}, {10, 8.5}, 0.2, seed);
        job.run();
        parts = std::max(parts, job.parts());
        EXPECT_LE(job.parts(), 3);
    }
    EXPECT_GT(parts, 1);
}

// Of two that are alike one passes for the faster in 1 of 160 looks, and it has up to three.
TEST(Race, SeldomTakesNoiseForAGain) {
    int changed = 0;
    int found = 0;
    for (unsigned seed = 1; seed <= 1'000; ++seed) {
        changed += Job({kOwn, kRing}, {10, 10}, 0.3, seed).run().choice == kRing ? 1 : 0;
        found += Job({kOwn, kRing}, {10, 7}, 0.3, seed).run().choice == kRing ? 1 : 0;
    }
    EXPECT_LT(changed, 20) << "of 1,000 that are all the same";
    EXPECT_GT(found, 900);
}

// Short calls have longer parts.
TEST(Race, MoreTimesTellSmallerGains) {
    int few = 0;
    int many = 0;
    for (unsigned seed = 1; seed <= 200; ++seed) {
        few += Job({kOwn, kRing}, {10, 9}, 0.2, seed).run().choice == kRing ? 1 : 0;
        many += Job({kOwn, kRing}, {10, 9}, 0.2, seed).run(kMostRounds).choice == kRing ? 1 : 0;
    }
    EXPECT_GT(many, 150);
    EXPECT_LT(few, many);
}

TEST(Race, TakesTheFewestChannelsThatAreAsFast) {
    EXPECT_EQ(Job(kChannels, {10, 10, 10, 10}, 0.001).run().choice, own_on(1));
    EXPECT_EQ(Job(kChannels, {10, 10, 10, 14}, 0.001).run().choice, own_on(2));
    EXPECT_EQ(Job(kChannels, {10, 11, 12, 13}, 0.001).run().choice, kOwn);
    EXPECT_EQ(Job(kChannels, {10, 10, 10, 8}, 0.001).run().choice, own_on(1));
    EXPECT_EQ(Job(kChannels, {10, 7, 8, 9}, 0.001).run().choice, own_on(4));
    Job job(kChannels, {10, 10.06, 10.06, 10.06}, 0.0001);
    EXPECT_EQ(job.run().choice, own_on(1)) << "clearly slower, but within 1 %";
    const CollectiveChoice narrow{kTree.algorithm, kTree.protocol, 1};
    EXPECT_EQ(Job({kTree, narrow}, {10, 10}, 0.001).run().choice, narrow);
}

TEST(Race, AnotherWayHasToBeatFewerChannels) {
    EXPECT_EQ(Job({kOwn, kTree, own_on(1)}, {10, 8, 7}).run().choice, own_on(1));
    EXPECT_EQ(Job({kOwn, kTree, own_on(1)}, {10, 7, 8}).run().choice, kTree);
}

TEST(Race, ALookLeavesOutWhatIsFarSlower) {
    // In milliseconds.
    const auto left = [](std::vector<std::uint64_t> times) {
        for (std::uint64_t& time : times) {
            time *= 1'000'000;
        }
        Race race(kWays);
        race.look(times);
        return race.choices();
    };
    const std::vector<std::uint64_t> ms{50, 50, 90, 12, 15, 10};  // candidates 0 1 2 1 2 0
    EXPECT_EQ(left(ms), kWays);
    std::vector<std::uint64_t> slow = ms;
    slow[4] = 16;
    EXPECT_EQ(left(slow), (std::vector<CollectiveChoice>{kOwn, kRing}));
    slow[3] = 0;
    EXPECT_EQ(left(slow).size(), 1u) << "the first time stands alone";
    slow[1] = 0;
    EXPECT_EQ(left(slow).size(), 2u) << "nothing is known of it";
    slow[0] = slow[5] = 0;
    EXPECT_EQ(left(slow).size(), 1u) << "the job no longer makes it";
}

TEST(Race, TooFewTimesTellNothing) {
    Job job({kOwn, kTree}, {10, 5});
    job.race().look(job.part(kLookRounds, true));
    EXPECT_TRUE(job.race().open());
    job.race().take(std::vector<std::uint64_t>(2 * kRounds, 0));
    EXPECT_FALSE(job.race().open()) << "the job no longer makes it";
    EXPECT_EQ(job.race().verdict().first_ms, 0);
    EXPECT_EQ(job.race().verdict().choice, kOwn);
    // Only of the faster one.
    Job half({kOwn, kTree}, {10, 5});
    half.race().look(half.part(kLookRounds, true));
    std::vector<std::uint64_t> times = half.part(kRounds, false);
    for (std::uint32_t i = 0; i < times.size(); ++i) {
        times[i] = Table::candidate_of(i, 2) == 1 ? 0 : times[i];
    }
    half.race().take(times);
    EXPECT_EQ(half.race().verdict().choice, kOwn);
    EXPECT_NEAR(half.race().verdict().first_ms, 10, 1);
}

TEST(Race, OfOneNeverBegins) {
    Race race({kTree});
    EXPECT_FALSE(race.open());
    EXPECT_FALSE(race.begun());
}

}  // namespace
}  // namespace deft::tuning
