// SPDX-License-Identifier: Apache-2.0
// One rank's director: staging, arming, lanes in the making and in force.
#include <malloc.h>
#include <stdlib.h>

#include <algorithm>
#include <regex>

#include "shim/control/directors.h"
#include "tests/component/shim/control/follower.h"

namespace deft::director::test {
namespace {

class GivenUp : public Follower, public ::testing::WithParamInterface<Kind> {};

TEST_P(GivenUp, StagedMemoryGoesBack) {
    stage();  // lanes and modules stay
    order(GetParam());
    director_->tick(track_);
    const std::uint64_t before = free_memory();
    stage();
    EXPECT_LE(free_memory() + (kCounts[0] + kCounts[1]) * 4, before) << "nothing was staged";
    order(GetParam());
    director_->tick(track_);
    EXPECT_EQ(free_memory(), before);
    // Once more from the beginning, and it comes into force.
    stage();
    order(Kind::Arm, ordinal_ + 2);
    EXPECT_EQ(g_lanes.aborted, 0);
}

INSTANTIATE_TEST_SUITE_P(By, GivenUp, ::testing::Values(Kind::Drop, Kind::Discard),
                         [](const auto& info) {
                             return info.param == Kind::Drop ? "Drop" : "Discard";
                         });

TEST_F(Follower, ANewStageFreesWhatTheLastOneStaged) {
    stage();
    const std::uint64_t held = free_memory();
    stage();
    order(Kind::Stage);
    director_->tick(track_);
    EXPECT_GE(free_memory(), held + (kCounts[0] + kCounts[1]) * 4);
}

TEST_F(Follower, ADiscardedStageMakesItsLanesAndNothingElse) {
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    order(Kind::Discard);
    ASSERT_TRUE(answers(Step::Opened)) << answer().reason;
    EXPECT_EQ(g_lanes.making, 1);
    director_->tick(track_);
    EXPECT_TRUE(lanes_aborted(1)) << "no rank tries it";
    EXPECT_EQ(g_lanes.called, 0);
}

// All ranks have launched them, and nothing keeps any from ending.
TEST_F(Follower, ADiscardedStageEndsItsTrialsInPeace) {
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    ASSERT_NO_FATAL_FAILURE(rehearse());
    order(Kind::Discard);
    ASSERT_TRUE(answers(Step::Unfit)) << answer().reason;
    EXPECT_EQ(g_lanes.aborted, 0);
}

// NCCL chooses an algorithm by type, operation and size, and connects at the first use of each: not
// in a hook.
TEST_F(Follower, ALaneIsUsedAsThePlanWillUseItBeforeThePlanDoes) {
    stage();
    using Asked = std::array<std::size_t, 3>;
    const auto has = [](std::size_t type, std::size_t count) {
        return std::find(g_lanes.asked.begin(), g_lanes.asked.end(), Asked{type, ncclSum, count}) !=
               g_lanes.asked.end();
    };
    EXPECT_TRUE(has(ncclUint32, 1)) << "the sum that is checked";
    EXPECT_TRUE(has(ncclFloat32, 1));
    EXPECT_TRUE(has(ncclFloat32, 64 * 1024 / 4));
    EXPECT_TRUE(has(ncclFloat32, kCounts[1])) << "the largest gradient";
}

// It waits in NCCL for a rank that has refused.
TEST_F(Follower, ADropReleasesALaneThatIsConnecting) {
    ASSERT_NO_FATAL_FAILURE(open_untried());
    order(Kind::Rehearse, ordinal_);
    g_lanes.connecting = true;
    std::thread application([this] {
        CUcontext context = nullptr;
        EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        make_next_calls();
    });
    EXPECT_TRUE(eventually([] { return g_lanes.calling == 1; }));
    order(Kind::Drop);
    EXPECT_TRUE(eventually([] { return g_lanes.calling == 0; }));
    application.join();
    EXPECT_FALSE(g_lanes.waited_in_vain) << "nothing has released it";
    EXPECT_TRUE(lanes_aborted(1));
}

// Its abort may take as long as theirs.
TEST_F(Follower, TheOthersHearThatALaneHasFailedBeforeItIsAborted) {
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    g_lanes.held_transfers = g_lanes.job_stuck = true;
    ASSERT_NO_FATAL_FAILURE(rehearse());
    g_lanes.error = DEFT_NCCL_REMOTE_ERROR;
    EXPECT_TRUE(answers(Step::Refused)) << answer().reason;
    EXPECT_EQ(g_lanes.aborted, 0);
    EXPECT_FALSE(g_lanes.waited_in_vain);
    g_lanes.job_stuck = false;
    EXPECT_TRUE(lanes_aborted(1));
}

// The environment allows no lanes.
class NoLanes : public Follower, public ::testing::WithParamInterface<const char*> {
protected:
    void SetUp() override {
        const std::string setting = GetParam();
        const std::string name = setting.substr(0, setting.find('='));
        ::setenv(name.c_str(), setting.substr(name.size() + 1).c_str(), 1);
        Follower::SetUp();
        ::unsetenv(name.c_str());
    }
};

TEST_P(NoLanes, AreMadeAndEveryRankHearsWhy) {
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    ASSERT_TRUE(answers(Step::Refused)) << answer().reason;
    EXPECT_EQ(answer().reason.find(GetParam()), 0U) << answer().reason;
    EXPECT_FALSE(answer().may_pass);
    EXPECT_EQ(g_lanes.making, 0);
    Job job;
    job.forwarded(*director_, ordinal_);
}

INSTANTIATE_TEST_SUITE_P(Because, NoLanes,
                         ::testing::Values("CUDA_DEVICE_MAX_CONNECTIONS=1", "NCCL_COMM_BLOCKING=0"),
                         [](const auto& info) {
                             const std::string setting = info.param;
                             return std::regex_replace(setting, std::regex("[_=]"), "");
                         });

// Whether the rank's background thread has taken note of the break by then is a matter of luck, and
// the answer must be the same on all ranks.
class AskedAfterABreak : public Follower, public ::testing::WithParamInterface<bool> {};

TEST_P(AskedAfterABreak, ThereIsAnUpdateIfACallReceivedASum) {
    using enum Update;
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    EXPECT_EQ(director_->take_update(), None);
    job.call(*director_, ordinal_++, kCounts[0]);  // late: there is nothing yet to deliver
    EXPECT_FALSE(job.make(*director_, ordinal_++, kCounts[0]));
    if (GetParam()) {
        director_->tick(track_);
    }
    EXPECT_EQ(director_->take_update(), Sums) << "one of the two is lost, not both";
    EXPECT_EQ(director_->take_update(), None) << "no call since";
    job.forwarded(*director_, ordinal_);
    EXPECT_EQ(director_->take_update(), None) << "without a plan it has no say";
}

INSTANTIATE_TEST_SUITE_P(With, AskedAfterABreak, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "ALookAtIt" : "NoLookAtIt"; });

TEST_F(Follower, ThereIsNoUpdateThoughThePlanHasBeenEndedSinceItsZeros) {
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    EXPECT_GT(director_->flush(), 0);
    director_->tick(track_);
    EXPECT_EQ(director_->take_update(), Update::Zeros);
}

// A bias has been delivered: the update must not be skipped.
TEST_F(Follower, ThereIsAnUpdateWhereASumThatIsTooSmallForAPlanHasPassed) {
    using enum Update;
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    director_->note_small();
    EXPECT_EQ(director_->take_update(), None) << "without a plan it has no say";
    director_->note_small();  // a metric of the iteration before
    job.iteration(*director_, ordinal_);
    EXPECT_EQ(director_->take_update(), Zeros);
    EXPECT_EQ(director_->flush(), 2);
    job.forwarded(*director_, ordinal_);
    stage();
    order(Kind::Arm, ordinal_);
    job.call(*director_, ordinal_++, kCounts[0]);
    director_->note_small();
    job.call(*director_, ordinal_++, kCounts[1]);
    EXPECT_EQ(director_->take_update(), Sums);
}

// The leader tears down lanes that nobody will use; ranks that see them go have not failed.
TEST_F(Follower, AnErrorOfALaneThatWasNeverInForceIsNotTheCommunicators) {
    stage();
    g_lanes.error = DEFT_NCCL_REMOTE_ERROR;
    EXPECT_EQ(director_->merge_async_error(DEFT_NCCL_SUCCESS), DEFT_NCCL_SUCCESS);
    g_lanes.error = 0;
    order(Kind::Arm, ordinal_);
    Job job;
    job.call(*director_, ordinal_, kCounts[0]);
    g_lanes.error = DEFT_NCCL_REMOTE_ERROR;
    EXPECT_EQ(director_->merge_async_error(DEFT_NCCL_SUCCESS), DEFT_NCCL_REMOTE_ERROR);
    director_->end(false);
}

// Its plan is over, and so are its transfers. But nothing more may be sent over it.
TEST_F(Follower, AnErrorOfALaneThatNoPlanUsesIsNotTheCommunicators) {
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(director_->flush(), 2);
    director_->tick(track_);
    g_lanes.error = DEFT_NCCL_REMOTE_ERROR;
    EXPECT_EQ(director_->merge_async_error(DEFT_NCCL_SUCCESS), DEFT_NCCL_SUCCESS);
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    ASSERT_TRUE(answers(Step::Refused)) << answer().reason;
    EXPECT_NE(answer().reason.find("a lane has failed"), std::string::npos) << answer().reason;
    EXPECT_TRUE(answer().may_pass);
    g_lanes.error = 0;
}

TEST_F(Follower, ALaneThatWasNeverInForceIsEndedWhenTheLeaderSaysSo) {
    stage();
    order(Kind::Discard);
    close_lanes();
    EXPECT_EQ(g_lanes.aborted, 1);
    stage();  // and made anew when a plan wants it
    EXPECT_EQ(g_lanes.making, 2);
}

// This rank may be behind the leader: its plan is still in force, its last transfers on their way.
TEST_F(Follower, ALaneInForceIsClosedWhenItsPlanIsOver) {
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    close_lanes();
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    EXPECT_EQ(g_lanes.destroyed, 0);
    g_lanes.held_transfers = true;
    job.iteration(*director_, ordinal_);
    EXPECT_EQ(director_->flush(), 2);  // generations on their way
    CUcontext context = nullptr;
    cuCtxPopCurrent(&context);  // as on the shim's own thread
    director_->tick(track_);
    director_->tick(track_);
    cuCtxPushCurrent(context);
    EXPECT_EQ(g_lanes.destroyed, 0) << "destroyed with a transfer in flight";
    g_lanes.held_transfers = false;
    EXPECT_TRUE(eventually([&] {
        director_->tick(track_);
        return g_lanes.destroyed == 1;
    }));
    EXPECT_EQ(g_lanes.aborted, 0);
    g_lanes.error = DEFT_NCCL_REMOTE_ERROR;
    EXPECT_EQ(director_->merge_async_error(DEFT_NCCL_SUCCESS), DEFT_NCCL_SUCCESS);
}

// The leader is beyond the switch, its plan over, its cycle learned again; this rank's host is
// iterations behind it.
TEST_F(Follower, WhatIsArmedIsNotReplacedBeforeItsCallHasCome) {
    stage();
    order(Kind::Arm, ordinal_ + 4);
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    for (int i = 0; i < 3; ++i) {
        director_->tick(track_);
    }
    Job job;
    job.forwarded(*director_, ordinal_);
    job.forwarded(*director_, ordinal_);
    job.iteration(*director_, ordinal_);
    ASSERT_TRUE(answers(Step::Ready)) << answer().reason;
    EXPECT_EQ(director_->facts().switched, 1U);
    job.iteration(*director_, ordinal_);
    EXPECT_EQ(director_->facts().executed, 4U);
    order(Kind::Arm, ordinal_);
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    EXPECT_EQ(director_->facts().switched, 2U);
}

// The leader has found that nobody switches, and has given the plan up.
TEST_F(Follower, WhatIsGivenUpGoesWhenItsCallHasComeToNothingHereToo) {
    stage();  // modules stay
    order(Kind::Discard);
    director_->tick(track_);
    const std::uint64_t before = free_memory();
    stage();
    order(Kind::Arm, ordinal_ + 2);
    order(Kind::Discard);
    director_->tick(track_);
    EXPECT_LT(free_memory(), before) << "it may come into force yet";
    g_lanes.refused = true;
    Job job;
    job.forwarded(*director_, ordinal_);
    job.forwarded(*director_, ordinal_);
    const std::uint64_t staged = free_memory();
    director_->tick(track_);
    EXPECT_GT(free_memory(), staged);
    EXPECT_EQ(director_->facts().switched, 0U);
}

// The ranks would ask each other over it.
TEST_F(Follower, APlanIsNotArmedWhereItsFirstLaneHasFailed) {
    stage();
    g_lanes.error = DEFT_NCCL_REMOTE_ERROR;
    order(Kind::Arm, ordinal_ + 2, agreement::Decision::Cancel);
    g_lanes.error = DEFT_NCCL_SUCCESS;
    order(Kind::Arm, ordinal_ + 2);
}

TEST_F(Follower, ASwitchThatIsNamedBeforeTheLastOneHasComeIsRefused) {
    stage();
    order(Kind::Arm, ordinal_ + 2);
    order(Kind::Forward, PlanSwitch::kAtRenewal, agreement::Decision::Cancel);
    Job job;
    job.forwarded(*director_, ordinal_);
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    EXPECT_EQ(director_->facts().switched, 1U);
    EXPECT_EQ(director_->facts().executed, 2U);
    order(Kind::Forward, PlanSwitch::kAtRenewal);
    until_renewal(job, 1);
    job.forwarded(*director_, ordinal_);
    director_->tick(track_);
    EXPECT_NE(director_->facts().state, "running");
}

// The leader's plan has ended and needs its lanes no longer; this rank has yet to come to it.
TEST_F(Follower, LanesOfWhatIsArmedAreNotClosedBeforeItsCallHasCome) {
    stage();
    order(Kind::Arm, ordinal_ + 2);
    close_lanes();
    Job job;
    job.forwarded(*director_, ordinal_);
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    EXPECT_EQ(director_->facts().executed, 2U);
    EXPECT_EQ(g_lanes.aborted, 0);
}

// The leader has forgotten them, whoever did not answer in time.
TEST_F(Follower, LanesAreClosedAlsoWhereARankDoesNotAnswer) {
    using agreement::Answer;
    scene_.member(0).answer_with({Answer::Yes, Answer::Yes, Answer::Yes, Answer::No});
    stage();
    EXPECT_EQ(g_lanes.aborted, 0);
    close_lanes(agreement::Decision::Cancel);
    EXPECT_EQ(g_lanes.aborted, 1);
}

// Between two looks of this rank's background thread, which gets no turn while the machine is busy.
class GivenUpSoon : public Follower, public ::testing::WithParamInterface<bool> {};

TEST_P(GivenUpSoon, APlanInForceIsSeenToComeAndToGo) {
    Job job;
    stage();
    const std::uint64_t held = free_memory();
    order(Kind::Arm, ordinal_);
    job.iteration(*director_, ordinal_);
    order(Kind::Forward, PlanSwitch::kAtRenewal);
    if (GetParam()) {
        director_->tick(track_);
        EXPECT_EQ(director_->facts().state, "running");
    }
    until_renewal(job, 1);
    job.forwarded(*director_, ordinal_);
    director_->tick(track_);
    EXPECT_NE(director_->facts().state, "running");
    EXPECT_EQ(director_->facts().switched, 1U);
    EXPECT_EQ(director_->facts().executed, 2 * executor::Lease::kEvery);
    EXPECT_EQ(director_->facts().dropped, 2U) << "sums that were late";
    director_->tick(track_);
    EXPECT_GE(free_memory(), held + (kCounts[0] + kCounts[1]) * 4);
    stage();
    order(Kind::Arm, ordinal_);
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    EXPECT_EQ(director_->facts().switched, 2U);
}

INSTANTIATE_TEST_SUITE_P(With, GivenUpSoon, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "ALookAtIt" : "NoLookAtIt"; });

TEST_F(Follower, APlanThatIsStagedIsNotToldAsTheOneInForce) {
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    delay_ = 0;
    stage();
    EXPECT_EQ(director_->facts().max_delay, 1U);
    order(Kind::Discard);
    director_->tick(track_);
    EXPECT_EQ(director_->facts().max_delay, 1U);
}

// A rank that cannot carry the plan out says so when its lanes are made, not before.
TEST_F(Follower, ARankThatRefusesThePlanMakesItsLanesFirst) {
    delay_ = 5;  // beyond DEFT_MAX_DELAY
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    ASSERT_NO_FATAL_FAILURE(rehearse());
    ASSERT_TRUE(answers(Step::Unfit)) << answer().reason;
    EXPECT_FALSE(answer().may_pass);
    EXPECT_EQ(g_lanes.making, 1);
    EXPECT_EQ(g_lanes.aborted, 0);
}

// Beside another rank in this process, of the same communicator or of another.
class Neighbours : public Follower, public ::testing::WithParamInterface<bool> {};

TEST_P(Neighbours, OfTheSameCommunicatorMakeNoLanes) {
    const auto introduced = [](Communicator& made, int rank, std::uint64_t hash, Scene& scene) {
        made.table = &fake_table();
        made.serial = 1;
        made.hash = hash;
        made.rank = rank;
        made.nranks = kRanks;
        made.device = 0;
        introduce(made, &scene[1]);
        return made.director.load();
    };
    static std::uint64_t unique = 0;
    const std::uint64_t hash = unique += 10;
    Scene other(kRanks);
    other.join_all();
    Communicator self;
    Communicator neighbour;
    director_ = introduced(self, 1, hash, scene_);
    Director* const next = introduced(neighbour, 0, GetParam() ? hash : hash + 1, other);
    ASSERT_NE(director_, nullptr);
    ASSERT_NE(next, nullptr);
    order(Kind::Stage);
    if (GetParam()) {
        ASSERT_TRUE(answers(Step::Refused)) << answer().reason;
        EXPECT_FALSE(answer().may_pass);
        EXPECT_NE(answer().reason.find("in one process"), std::string::npos) << answer().reason;
    } else {
        EXPECT_TRUE(answers(Step::Learned)) << answer().reason;
    }
    next->end(false);
}

INSTANTIATE_TEST_SUITE_P(Are, Neighbours, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Twins" : "Strangers"; });

}  // namespace
}  // namespace deft::director::test
