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
            EXPECT_TRUE(lane.asked());
            EXPECT_FALSE(lane.casts_in_doubt());
            EXPECT_FALSE(lane.casts_alone(0, 0));
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
        EXPECT_FALSE(lane.asked());
        ASSERT_EQ(lane.cast(Question::Switches, Ballot::Word::No), DEFT_NCCL_SUCCESS);
        EXPECT_FALSE(lane.casts_alone(0, 0)) << "one that is known to all needs no other end";
        lane.doubt_cast();
        EXPECT_TRUE(lane.casts_in_doubt());
        EXPECT_FALSE(lane.casts_alone(0)) << "the others may come yet";
        EXPECT_TRUE(lane.casts_alone(Ballot::kLongest, 0)) << "of a job that makes no call";
        call();
        lane.mark_cast(reinterpret_cast<cuda::Stream>(self.stream));
        self.sync();  // the job's call has been made by both
        constexpr std::int64_t kLong = 60'000'000;
        std::this_thread::sleep_for(std::chrono::nanoseconds(2 * kLong));
        EXPECT_FALSE(lane.casts_alone(kLong)) << "the others' casts may be on their way";
        while (!lane.casts_alone(kLong)) {  // or the test never ends
            std::this_thread::sleep_for(1ms);
        }
        over = true;
        lane.abort();
        lane.drain();
        EXPECT_FALSE(lane.casts_in_doubt());
    });
}

// It asks again, and then all do.
TEST(Ballots, DoubtIsOverWithTheNextCast) {
    const Ids ids(1);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        Lane& lane = *lanes.pointers[0];
        ASSERT_EQ(lane.cast(Question::Switches, Ballot::Word::Yes), DEFT_NCCL_SUCCESS);
        lane.doubt_cast();
        lane.mark_cast(reinterpret_cast<cuda::Stream>(self.stream));
        EXPECT_EQ(await_answer(lane), Ballot::Answer::Yes);
        EXPECT_FALSE(lane.casts_in_doubt()) << "it is answered";
        EXPECT_FALSE(lane.casts_alone(0));
        if (self.rank == 0) {
            ASSERT_EQ(lane.cast(Question::Switches, Ballot::Word::Yes), DEFT_NCCL_SUCCESS);
            EXPECT_FALSE(lane.casts_in_doubt());
            EXPECT_FALSE(lane.casts_alone(0, 0));
            lane.abort();
            lane.drain();
        }
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
