// SPDX-License-Identifier: Apache-2.0
// What lanes are made with: network, CTAs, priority. Run with DEFT_LANES=IB, and DEFT_LANE_CTAS set
// or not.
#include <climits>
#include <cstdlib>

#include "tests/component/shim/control/follower.h"

namespace deft::director::test {
namespace {

class LaneSettings : public Follower {
protected:
    // Two lanes for a job whose gradients travel on a stream of this priority.
    void make_lanes(int priority) {
        CUstream stream = nullptr;
        ASSERT_EQ(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, priority),
                  CUDA_SUCCESS);
        director_->tick(track_);  // finds the driver
        Call call;
        call.count = kCounts[0];
        call.type = DEFT_NCCL_FLOAT32;
        call.op = DEFT_NCCL_SUM;
        int result = 0;
        EXPECT_FALSE(director_->all_reduce(call, ordinal_++, false,
                                           reinterpret_cast<deft_cuda_stream_t>(stream), result));
        lanes_wanted_ = 2;
        stage();
        cuStreamDestroy(stream);
    }
};

TEST_F(LaneSettings, CtasAreLimitedOnOtherNetworksAndOnTheJobsOwnOnlyWhereTheyAreSet) {
    make_lanes(0);
    ASSERT_EQ(g_lanes.configs.size(), 2U);
    EXPECT_EQ(g_lanes.networks, (std::vector<std::string>{"", "IB"}));
    const char* const set = std::getenv("DEFT_LANE_CTAS");
    const int limit = set != nullptr ? std::atoi(set) : 4;
    EXPECT_EQ(g_lanes.configs[0].maxCTAs, set != nullptr ? limit : NCCL_CONFIG_UNDEF_INT);
    EXPECT_EQ(g_lanes.configs[1].maxCTAs, limit);
    for (const ncclConfig_t& config : g_lanes.configs) {
        EXPECT_EQ(config.blocking, 1);
        EXPECT_EQ(config.trafficClass, NCCL_CONFIG_UNDEF_INT) << "a class of the wire to others";
    }
}

// Their networks stand still, or other ranks have never launched theirs. An abort waits for the
// whole device, so for the kernels of the other lane too.
class TwoStuck : public Follower {
protected:
    void TearDown() override {
        EXPECT_FALSE(g_lanes.waited_in_vain) << "one was told to end when another had ended";
        EXPECT_EQ(g_lanes.aborted, 2);
        Follower::TearDown();
    }
};

TEST_F(TwoStuck, ADestroyGivesUpTrialsOfBoth) {
    lanes_wanted_ = 2;
    ASSERT_NO_FATAL_FAILURE(open_untried());
    order(Kind::Rehearse, ordinal_);
    g_lanes.held_transfers = true;
    g_lanes.stuck = 2;
    make_next_calls();
    director_->end(false);
}

TEST_F(TwoStuck, ADestroyGivesUpTransfersOfBoth) {
    lanes_wanted_ = 2;
    parts_ = {{0.5, 0}, {0.5, 1}};
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    g_lanes.held_transfers = true;
    g_lanes.stuck = 2;
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    g_lanes.error = DEFT_NCCL_REMOTE_ERROR;
    director_->end(false);
}

// The lane over the job's own network is as the job's communicator; another network was not what
// the job chose for.
class JobsChoices : public LaneSettings {
protected:
    JobsChoices() {
        choices_.max_ctas = 12;
        choices_.traffic_class = 3;
    }
};

TEST_F(JobsChoices, Hold) {
    make_lanes(0);
    ASSERT_EQ(g_lanes.configs.size(), 2U);
    if (std::getenv("DEFT_LANE_CTAS") == nullptr) {
        EXPECT_EQ(g_lanes.configs[0].maxCTAs, 12);
    }
    EXPECT_NE(g_lanes.configs[1].maxCTAs, 12);
    for (const ncclConfig_t& config : g_lanes.configs) {
        EXPECT_EQ(config.trafficClass, 3);
    }
}

TEST_F(LaneSettings, LanesHaveThePriorityOfTheJobsStream) {
    int least = 0;
    int greatest = 0;
    ASSERT_EQ(cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_SUCCESS);
    ASSERT_LT(greatest, least);
    make_lanes(greatest);
    ASSERT_GE(g_lanes.priorities.size(), 2U);
    for (const int priority : g_lanes.priorities) {
        EXPECT_EQ(priority, greatest);
    }
}

}  // namespace
}  // namespace deft::director::test
