// SPDX-License-Identifier: Apache-2.0
// What ranks tell of a training, and the guard that hears it.
#include "shim/guard/training_watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "perf/executor/plans.h"
#include "shim/guard/guard.h"

namespace deft::guard {
namespace {

constexpr int kRanks = 4;
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

TEST(TrainingReport, SurvivesTheWire) {
    const std::vector<Training> told = {{7, true, -0.5, kUnknown, 0.1},
                                        {8, false, std::numeric_limits<double>::infinity(), 3, 0}};
    std::vector<Training> heard;
    ASSERT_TRUE(decode(encode(told), heard));
    ASSERT_EQ(heard.size(), 2U);
    EXPECT_EQ(heard[0].iteration, 7U);
    EXPECT_TRUE(heard[0].late);
    EXPECT_EQ(heard[0].loss, -0.5);
    EXPECT_TRUE(std::isnan(heard[0].norm));
    EXPECT_EQ(heard[0].rate, 0.1);
    EXPECT_FALSE(heard[1].late);
    EXPECT_TRUE(std::isinf(heard[1].loss));
    Statistics statistics;
    EXPECT_FALSE(decode(encode(told), statistics)) << "another report";
}

TEST(TrainingReport, NothingElseIsOne) {
    std::vector<std::byte> bytes = encode(std::vector<Training>(3));
    std::vector<Training> heard;
    EXPECT_FALSE(decode({}, heard));
    EXPECT_FALSE(decode(std::span(bytes).first(bytes.size() - 1), heard));
    bytes.push_back({});
    EXPECT_FALSE(decode(bytes, heard));
    std::mt19937 random(3);
    for (int i = 0; i < 10'000; ++i) {
        std::vector<std::byte> wrong = encode(std::vector<Training>(3));
        wrong[random() % 9] = static_cast<std::byte>(random());
        wrong.resize(random() % (wrong.size() + 1));
        EXPECT_FALSE(decode(wrong, heard) && heard.size() > 3);
    }
}

// Iterations of one training, as all ranks tell of them.
class Told : public ::testing::Test {
protected:
    void tell(bool late, double loss, double norm = kUnknown) {
        for (int rank = 0; rank < kRanks; ++rank) {
            // Each rank has samples of its own; their mean is the loss.
            const double own = loss + (rank % 2 == 0 ? 0.2 : -0.2);
            if (std::string why = watch_.note(rank, {iteration_, late, own, norm, 0.1});
                !why.empty()) {
                why_ = why;
            }
        }
        ++iteration_;
    }
    void tell_many(int times, bool late, double loss, double norm = kUnknown) {
        for (int i = 0; i < times; ++i) {
            tell(late, loss + 0.01 * (i % 2), norm);
        }
    }

    TrainingWatch watch_{kRanks, 0};
    std::uint64_t iteration_ = 0;
    std::string why_;
};

TEST_F(Told, TheMeanOfTheRanksIsTheLoss) {
    tell_many(60, false, 1);
    tell_many(20, true, 1);
    EXPECT_EQ(why_, "");
    EXPECT_NEAR(watch_.stretch().expected, 1.005, 1e-9);
    EXPECT_NEAR(watch_.stretch().seen, 1.005, 1e-9);
    EXPECT_EQ(watch_.stretch().from, 60U);
    EXPECT_EQ(watch_.stretch().to, 79U);
    tell_many(4, true, 2);
    EXPECT_NE(why_.find("the loss rose"), std::string::npos) << why_;
}

// A job that trains one model after the other over one communicator.
TEST_F(Told, AnotherModuleHasATrendOfItsOwn) {
    tell_many(200, false, 1, 1);
    iteration_ = 0;
    tell_many(60, false, 8, 9);
    tell_many(20, true, 8, 9);
    EXPECT_EQ(why_, "") << "the first model's loss is no trend of the second one's";
    EXPECT_NEAR(watch_.stretch().expected, 8.005, 1e-9);
    EXPECT_EQ(watch_.stretch().from, 60U);
    tell_many(4, true, 16, 9);
    EXPECT_NE(why_.find("the loss rose"), std::string::npos) << why_;
}

TEST_F(Told, ARankThatTellsNothingIsNotWaitedForForEver) {
    for (; iteration_ < 160; ++iteration_) {
        for (int rank = 1; rank < kRanks; ++rank) {
            const std::string why = watch_.note(
                rank,
                {iteration_, iteration_ > 60, iteration_ > 70 ? 3.0 : 1.0, kUnknown, kUnknown});
            why_ = why.empty() ? why_ : why;
        }
    }
    EXPECT_NE(why_, "");
}

// Short iterations come many at a time, of one rank after the other.
TEST_F(Told, RanksMayTellManyIterationsAtOnce) {
    for (int batch = 0; batch < 4; ++batch) {
        for (int rank = 0; rank < kRanks; ++rank) {
            for (std::uint64_t i = 0; i < kMostTold; ++i) {
                const std::uint64_t iteration = batch * kMostTold + i;
                why_ += watch_.note(rank, {iteration, iteration > 60, iteration > 70 ? 3.0 : 1.0,
                                           kUnknown, kUnknown});
            }
        }
    }
    EXPECT_NE(why_.find("the loss rose"), std::string::npos) << why_;
}

TEST_F(Told, AMeanOfFewRanksIsNone) {
    for (; iteration_ < 100; ++iteration_) {
        for (int rank = 0; rank < kRanks; ++rank) {
            const double loss = rank == 0 ? (iteration_ > 70 ? 3.0 : 1.0) : kUnknown;
            why_ += watch_.note(rank, {iteration_, iteration_ > 60, loss, kUnknown, kUnknown});
        }
    }
    EXPECT_EQ(why_, "");
    EXPECT_TRUE(watch_.settled()) << "whoever hears no loss does not wait for one";
}

TEST_F(Told, ANormThatDoublesAtTheSwitchIsSeen) {
    tell_many(60, false, 1, 0.5);
    tell(true, 1, 0);  // nothing was delivered
    tell_many(4, true, 1, 1.1);
    EXPECT_EQ(why_, "");
    tell_many(1, true, 1, 1.1);
    EXPECT_NE(why_.find("2.2 times"), std::string::npos) << why_;
}

TEST_F(Told, ANormIsComparedWithWhatThePlanMakesOfIt) {
    watch_.plan(2, 1.9);
    tell_many(60, false, 1, 0.5);
    tell_many(20, true, 1, 0.5 * 2 * 1.9 * 1.9);
    EXPECT_EQ(why_, "");
}

TEST_F(Told, ANormThatGrowsWhileTheLossFallsIsNone) {
    tell_many(60, false, 2, 0.5);
    for (int i = 0; i < 20; ++i) {
        tell(true, 1.9 - 0.05 * i, 1.5);
    }
    EXPECT_EQ(why_, "");
}

TEST_F(Told, ANormThatGrowsLaterIsNoMatterOfTheSwitch) {
    tell_many(60, false, 1, 0.5);
    tell_many(30, true, 1, 0.5);
    tell_many(30, true, 1, 2);
    EXPECT_EQ(why_, "");
}

// The guard over it.
class Heard : public ::testing::Test {
protected:
    void tell(int times, bool late, double loss) {
        for (int i = 0; i < times; ++i, ++iteration_) {
            for (int rank = 0; rank < kRanks; ++rank) {
                guard_.note(rank, {iteration_, late, loss + 0.01 * (i % 2), kUnknown, 0.1});
            }
        }
    }

    Guard guard_{Settings(), kRanks};
    const planner::Plan plan_ = executor::test::uniform_plan({4096, 8192}, 1, 1);
    std::uint64_t iteration_ = 0;
};

TEST_F(Heard, ALossThatRisesEndsThePlan) {
    tell(60, false, 1);
    guard_.plan_in_force(plan_, iteration_);
    tell(30, true, 1);
    EXPECT_EQ(guard_.decide(iteration_).action, Action::Keep);
    tell(4, true, 2);
    const Decision decision = guard_.decide(iteration_);
    EXPECT_EQ(decision.action, Action::FallBack);
    EXPECT_TRUE(decision.act);
    EXPECT_NE(decision.reason.find("the loss rose"), std::string::npos) << decision.reason;
    EXPECT_NE(decision.reason.find(", 33 after"), std::string::npos) << decision.reason;
}

TEST_F(Heard, ThePlanComesBackWhereTheLossHasComeToRest) {
    tell(60, false, 1);
    guard_.plan_in_force(plan_, iteration_);
    tell(5, true, 3);
    ASSERT_EQ(guard_.decide(iteration_).action, Action::FallBack);
    guard_.plan_in_force({}, iteration_);
    const std::uint64_t fallen = iteration_;
    const std::uint64_t hold = Settings().hold;
    for (double loss = 1; iteration_ < fallen + hold + 40; loss *= 1.05) {
        tell(1, false, loss);
        EXPECT_EQ(guard_.decide(iteration_).action, Action::Keep) << "it rises without a plan";
    }
    tell(40, false, 1);
    EXPECT_EQ(guard_.decide(iteration_).action, Action::Resume);
}

TEST_F(Heard, WhereNobodyTellsThePlanComesBackByItself) {
    guard_.plan_in_force(plan_, 10);
    Statistics bad;
    bad.not_finite = 1;
    guard_.report(0, bad);
    ASSERT_EQ(guard_.decide(20).action, Action::FallBack);
    guard_.plan_in_force({}, 22);
    EXPECT_EQ(guard_.decide(22 + Settings().hold).action, Action::Resume);
}

}  // namespace
}  // namespace deft::guard
