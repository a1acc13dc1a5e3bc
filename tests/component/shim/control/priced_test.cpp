// SPDX-License-Identifier: Apache-2.0
// The leader prices plans that are late by what its companion has measured of the job's steps.
#include <cmath>

#include "shim/settings/companion.h"
#include "tests/component/shim/control/leader.h"

namespace deft::director::test {
namespace {

constexpr double kBorne = 0.05;   // by gradients that are late by one, extrapolated: up to 0.12
constexpr double kTooMuch = 0.4;  // and this by fresh ones alone

class Priced : public Leader {
protected:
    void SetUp() override {
        static std::uint32_t modules = 2000;  // none that another test has told of
        module_ = ++modules;
        ASSERT_EQ(companion_begin(DEFT_COMPANION_INTERFACE, kWho), DEFT_COMPANION_PROOF);
        ASSERT_TRUE(note_steps(module_, -1, -1)) << "plans are priced";
        for (int i = 0; i < 10; ++i) {
            EXPECT_TRUE(prove_iteration(module_)) << "something may come of it";
        }
        ASSERT_NO_FATAL_FAILURE(Leader::SetUp());
        job_->mark(module_);
        Proof proof;
        proof.holds = true;
        proof.who = kWho;
        ASSERT_TRUE(scene_[1].report(encode(proof)));
    }
    void in_force() {
        iterate(kHidden, false, 20);
        note_steps(module_, kBorne, 1);
        ASSERT_EQ(staged().predicted.max_delay, 1U);
        const std::uint64_t at = armed();
        reach(at, false);
        in_force_at_ = at;
        iterate(kIdle, true);
        ASSERT_TRUE(ticks_until([&] { return director_->facts().switched == 1; }));
    }
    bool refused() {
        return director_->facts().reason.find("rate x curvature 0.4, bound 0.12") !=
               std::string::npos;
    }

    static constexpr const char* kWho = "a test's";
};

// A companion of the interface before proves all the same; it measures no steps, and tells no
// losses.
TEST_F(Priced, ACompanionOfTheInterfaceBeforeIsHeard) {
    EXPECT_EQ(companion_begin(DEFT_COMPANION_INTERFACE_BEFORE, kWho), DEFT_COMPANION_PROOF);
    EXPECT_EQ(companion_begin(DEFT_COMPANION_INTERFACE_BEFORE - 1, kWho), -1);
    EXPECT_EQ(companion_begin(DEFT_COMPANION_INTERFACE + 1, kWho), -1);
}

TEST_F(Priced, NothingIsLateBeforeTheStepsAreMeasured) {
    iterate(kHidden, false, 20);
    linger();
    EXPECT_EQ(asked(), 0U);
    note_steps(module_, kBorne, 1);
    EXPECT_EQ(staged().predicted.max_delay, 1U);
}

TEST_F(Priced, WhereNothingWillBeMeasuredTheCapCounts) {
    iterate(kHidden, false, 20);
    note_steps(module_, NAN, -1);
    EXPECT_EQ(staged().predicted.max_delay, 1U);
}

TEST_F(Priced, APlanThatTheStepsDoNotBearComesWhenTheRateHasFallen) {
    iterate(kHidden, false, 20);
    note_steps(module_, kTooMuch, 1);
    EXPECT_TRUE(ticks_until([&] { return refused(); })) << director_->facts().reason;
    linger();
    EXPECT_EQ(asked(), 0U);
    note_steps(module_, kBorne, 1);
    EXPECT_EQ(staged().predicted.max_delay, 1U);
}

TEST_F(Priced, APlanThatIsBeingMadeReadyGivesWay) {
    iterate(kHidden, false, 20);
    note_steps(module_, kBorne, 1);
    ASSERT_EQ(staged().predicted.max_delay, 1U);
    note_steps(module_, kTooMuch, 1);
    heard(Kind::Drop);  // no lanes are being made yet
    EXPECT_TRUE(ticks_until([&] { return refused(); })) << director_->facts().reason;
}

TEST_F(Priced, APlanInForceEndsWhereTheRateLeavesItsBound) {
    ASSERT_NO_FATAL_FAILURE(in_force());
    note_steps(module_, kBorne * 1.5, 1);
    linger();
    note_steps(module_, kTooMuch, 1);
    heard(Kind::Forward);
}

}  // namespace
}  // namespace deft::director::test
