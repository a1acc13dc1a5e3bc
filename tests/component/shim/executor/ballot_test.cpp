// SPDX-License-Identifier: Apache-2.0
// Ranks ask each other over a lane, and one asks where the others do not.
#include <chrono>
#include <thread>

#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

using namespace std::chrono_literals;

Ballot::Answer await_answer(Lane& lane) {
    Ballot::Answer answer = lane.answer(Question::Switches);
    while (answer == Ballot::Answer::Pending) {
        std::this_thread::sleep_for(1ms);
        answer = lane.answer(Question::Switches);
    }
    return answer;
}

TEST(Ballots, AreYesOnAllRanksWhereAllHaveSaidSo) {
    const Ids ids(1);
    softdev::test::run_ranks(3, [&](Rank& self) {
        Lanes lanes(self, ids);
        Lane& lane = *lanes.pointers[0];
        for (int silent = -1; silent < self.nranks; ++silent) {
            ASSERT_EQ(lane.cast(Question::Switches,
                                self.rank != silent ? Ballot::Word::Yes : Ballot::Word::No),
                      DEFT_NCCL_SUCCESS);
            EXPECT_EQ(await_answer(lane), silent < 0 ? Ballot::Answer::Yes : Ballot::Answer::No)
                << silent;
            EXPECT_FALSE(lane.casting());
            EXPECT_FALSE(lane.casts_alone(0));
        }
    });
    EXPECT_EQ(softdevReports(), 0U);
}

// A rank that does not know of a decision asks, and the others know that it was against.
TEST(Ballots, OneThatNobodyElseCastsIsKnownByTheJobsNextCall) {
    const Ids ids(1);
    std::atomic<bool> over{false};
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        Lane& lane = *lanes.pointers[0];
        Device<float> buffer(std::vector<float>(100, 1));
        const auto call = [&] {
            EXPECT_EQ(ncclAllReduce(buffer.get(), buffer.get(), 100, ncclFloat, ncclSum, self.comm,
                                    self.stream),
                      ncclSuccess);
        };
        if (self.rank == 1) {
            std::this_thread::sleep_for(50ms);  // it comes late
            call();
            self.sync();
            while (!over) {
                std::this_thread::sleep_for(1ms);
            }
            return;
        }
        ASSERT_EQ(lane.cast(Question::Switches, Ballot::Word::No), DEFT_NCCL_SUCCESS);
        EXPECT_TRUE(lane.casting());
        EXPECT_FALSE(lane.casts_alone(0)) << "the others may come yet";
        call();
        lane.mark_cast(reinterpret_cast<cuda::Stream>(self.stream));
        EXPECT_FALSE(lane.casts_alone(Ballot::kLongest));
        while (!lane.casts_alone(0)) {  // or the test never ends
            std::this_thread::sleep_for(1ms);
        }
        self.sync();  // the job's call has been made by both
        over = true;
        lane.abort();
        lane.drain();
        EXPECT_FALSE(lane.casting());
    });
}

TEST(Ballots, FailOnALaneThatHasEnded) {
    const Ids ids(1);
    softdev::test::run_ranks(1, [&](Rank& self) {
        Lanes lanes(self, ids);
        lanes.pointers[0]->abort();
        EXPECT_NE(lanes.pointers[0]->cast(Question::Switches, Ballot::Word::Yes),
                  DEFT_NCCL_SUCCESS);
        EXPECT_EQ(lanes.pointers[0]->answer(Question::Switches), Ballot::Answer::Failed);
    });
}

}  // namespace
}  // namespace deft::executor::test
