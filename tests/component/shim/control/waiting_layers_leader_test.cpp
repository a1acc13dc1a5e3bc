// SPDX-License-Identifier: Apache-2.0
// The leader plans for layers that wait for their own gradients while every rank says that they do.
#include "shim/settings/companion.h"
#include "tests/component/shim/control/leader.h"

namespace deft::director::test {
namespace {

class WaitingLeader : public Leader {
protected:
    void SetUp() override {
        static std::uint32_t modules = 1000;  // none that another test has told of
        module_ = ++modules;
        ASSERT_EQ(companion_begin(DEFT_COMPANION_INTERFACE, kWho), DEFT_COMPANION_LAYERS);
        layers_wait(module_);
        ASSERT_NO_FATAL_FAILURE(Leader::SetUp());
        job_->mark(module_);
    }
    // The follower's companion.
    void tell(bool layers, const std::string& why = "") {
        Proof proof;
        proof.holds = proof.layers = layers;
        proof.who = kWho;
        proof.why = why;
        ASSERT_TRUE(scene_[1].report(encode(proof)));
    }

    static constexpr const char* kWho = "a test's";
};

TEST_F(WaitingLeader, PlansNothingWithoutTheWordOfEveryRank) {
    iterate(kHidden, false, 20);
    linger();
    EXPECT_EQ(asked(), 0U);
    tell(false, "its layers do not wait (a test)");
    linger();
    EXPECT_EQ(asked(), 0U);
    tell(true);
    EXPECT_EQ(staged().barrier, planner::Barrier::Layer);
}

TEST_F(WaitingLeader, EndsThePlanWhenARankTakesItsWordBack) {
    tell(true);
    iterate(kHidden, false, 20);
    ASSERT_EQ(staged().barrier, planner::Barrier::Layer);
    const std::uint64_t at = armed();
    reach(at, false);
    in_force_at_ = at;
    iterate(kHidden, true);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().switched == 1; }));
    tell(false, "a parameter is read (a test)");
    heard(Kind::Forward);
}

}  // namespace
}  // namespace deft::director::test
