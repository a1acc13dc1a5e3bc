// SPDX-License-Identifier: Apache-2.0
// A plan goes on only as long as every rank vouches for it, and ends at one call on all of them.
#include <algorithm>
#include <limits>

#include "shim/executor/lease.h"
#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();
const std::vector<std::uint64_t> kCounts{5003, 129};

struct Ended {
    std::uint64_t iteration = 0;  // in which the plan was found to have ended; 0: it goes on
    BreakReason why = BreakReason::None;
    bool vouched = true;
};

// So many ranks run so many iterations under a plan that delays; before each of them every rank
// says until when it vouches.
std::vector<Ended> run(int nranks, std::int64_t iterations,
                       const std::function<std::int64_t(int rank, std::int64_t iteration)>& until) {
    const auto shapes = shapes_of(kCounts);
    const Plan plan = uniform_plan(bytes_of(shapes), 1, 1, {{1, 0}});
    CompileOptions options;
    options.forward_lane = kNoLane;
    std::string problem;
    const Script script = compile(plan, shapes, options, problem);
    EXPECT_EQ(problem, "");
    const Ids ids(1);
    std::vector<Ended> ended(static_cast<std::size_t>(nranks));
    softdev::test::run_ranks(nranks, [&](Rank& self) {
        Lanes lanes(self, ids);
        ExecutorOptions execution;
        execution.lease = true;
        std::string why;
        auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                         lanes.pointers, script, execution, why);
        ASSERT_NE(executor, nullptr) << why;
        Ended& end = ended[static_cast<std::size_t>(self.rank)];
        for (std::int64_t t = 0; t < iterations; ++t) {
            executor->vouch(until(self.rank, t));
            EXPECT_FALSE(executor->renew(false));
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                Device<std::byte> buffer(local_gradient(shapes[b], self.rank, t, b));
                ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(),
                                            buffer.get(), shapes[b]),
                          ncclSuccess);
                self.sync();
                if (executor->broken() && b == 0 && end.iteration == 0) {
                    end = {static_cast<std::uint64_t>(t), executor->why(), executor->vouched()};
                }
                // Late by one under the plan, and at once after it.
                const std::int64_t from = end.iteration > 0 ? t : t - 1;
                expect_delivered(
                    buffer.host(), shapes[b],
                    [&](std::uint64_t i) {
                        return from < 0 ? 0 : reduced(nranks, from, b, i, ncclSum);
                    },
                    "rank " + std::to_string(self.rank) + " iteration " + std::to_string(t));
            }
        }
    });
    EXPECT_EQ(softdevReports(), 0U);
    return ended;
}

class OnRanks : public ::testing::TestWithParam<int> {};

TEST_P(OnRanks, APlanGoesOnWhileAllVouch) {
    for (const Ended& end :
         run(GetParam(), 4 * Lease::kEvery, [](int, std::int64_t) { return kForEver; })) {
        EXPECT_EQ(end.why, BreakReason::None);
    }
}

TEST_P(OnRanks, APlanEndsOnAllRanksAlikeWhereOneDoesNot) {
    for (const std::int64_t last : {3, 31}) {
        const int silent = static_cast<int>(last) % GetParam();
        const auto ended = run(
            GetParam(), last + 2 * static_cast<std::int64_t>(Lease::kEvery + 1),
            [&](int rank, std::int64_t t) { return rank == silent && t > last ? 0 : kForEver; });
        for (const Ended& end : ended) {
            EXPECT_EQ(end.why, BreakReason::Lease);
            EXPECT_EQ(end.iteration, ended.front().iteration);
            EXPECT_GT(end.iteration, static_cast<std::uint64_t>(last));
            EXPECT_LE(end.iteration,
                      static_cast<std::uint64_t>(last) + Lease::kEvery + Lease::kAfter + 1);
        }
        EXPECT_FALSE(ended[static_cast<std::size_t>(silent)].vouched);
        EXPECT_EQ(
            std::count_if(ended.begin(), ended.end(), [](const Ended& e) { return e.vouched; }),
            GetParam() - 1);
    }
}

// Its thread is stuck: what it has said runs out.
TEST_P(OnRanks, APlanEndsWhereNobodySaysAnythingAnyMore) {
    const std::int64_t at_once = 1;  // long over
    for (const Ended& end : run(GetParam(), 2 * Lease::kEvery, [&](int rank, std::int64_t) {
             return rank == 0 ? at_once : kForEver;
         })) {
        EXPECT_EQ(end.why, BreakReason::Lease);
        EXPECT_EQ(end.iteration, Lease::kEvery);
    }
}

// A decision may reach one rank earlier than another, or never: the plan gives way on all of them
// at the first call before which all have known it.
TEST_P(OnRanks, APlanGivesWayOnAllRanksAlikeWhenTheLastHasHeardOfIt) {
    const auto shapes = shapes_of(kCounts);
    CompileOptions options;
    options.forward_lane = kNoLane;
    std::string problem;
    const Script script =
        compile(uniform_plan(bytes_of(shapes), 1, 1, {{1, 0}}), shapes, options, problem);
    const Ids ids(1);
    std::vector<int> at(static_cast<std::size_t>(GetParam()), -1);
    softdev::test::run_ranks(GetParam(), [&](Rank& self) {
        Lanes lanes(self, ids);
        std::string why;
        auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                         lanes.pointers, script, {}, why);
        ASSERT_NE(executor, nullptr) << why;
        int& mine = at[static_cast<std::size_t>(self.rank)];
        for (int t = 0; t < 60 && mine < 0; ++t) {
            if (executor->renew(t >= 3 + 9 * self.rank)) {
                mine = t;
                break;
            }
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                Device<std::byte> buffer(local_gradient(shapes[b], self.rank, t, b));
                ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(),
                                            buffer.get(), shapes[b]),
                          ncclSuccess);
                self.sync();
            }
        }
    });
    const int last = 3 + 9 * (GetParam() - 1);
    for (const int mine : at) {
        EXPECT_EQ(mine, at.front());
        EXPECT_GT(mine, last);
        EXPECT_LE(mine, last + static_cast<int>(Lease::kEvery + Lease::kAfter));
    }
}

// Of a large job, without its network: NCCL delivers the smallest word to all.
struct Strain {
    const char* name;
    // The first iteration in which this rank does not vouch any more; -1: it goes on.
    std::int64_t (*stops)(int rank);
    std::int64_t first;  // rank's that is
    friend void PrintTo(const Strain& s, std::ostream* out) { *out << s.name; }
};

class Many : public ::testing::TestWithParam<std::tuple<Strain, std::uint32_t>> {};

TEST_P(Many, EndThePlanAtOneCall) {
    constexpr int kMany = 2000;
    const auto& [strain, period] = GetParam();
    std::vector<std::unique_ptr<Lease>> leases;
    for (int rank = 0; rank < kMany; ++rank) {
        leases.push_back(std::make_unique<Lease>(period, true));
    }
    std::vector<std::uint64_t> ended(kMany, 0);
    auto smallest = Ballot::Word::Switch;
    for (std::uint64_t t = 0; t < 400; ++t) {
        for (int rank = 0; rank < kMany; ++rank) {
            Lease& lease = *leases[static_cast<std::size_t>(rank)];
            std::uint64_t& end = ended[static_cast<std::size_t>(rank)];
            const std::int64_t stops = strain.stops(rank);
            lease.vouch(stops >= 0 && static_cast<std::int64_t>(t) >= stops ? 0 : kForEver);
            if (end == 0 && lease.hears(t) && smallest == Ballot::Word::No) {
                end = t;
            }
        }
        for (int rank = 0; rank < kMany; ++rank) {
            Lease& lease = *leases[static_cast<std::size_t>(rank)];
            if (lease.asks(t)) {
                const Ballot::Word word = lease.word(t, false);
                smallest = rank == 0 ? word : std::min(smallest, word);
            }
        }
    }
    for (const std::uint64_t end : ended) {
        EXPECT_EQ(end, ended.front());
        if (strain.first < 0) {
            EXPECT_EQ(end, 0U);
        } else {
            EXPECT_GT(end, static_cast<std::uint64_t>(strain.first));
            EXPECT_LE(end, static_cast<std::uint64_t>(strain.first) + leases[0]->most_late());
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, Many,
    ::testing::Combine(
        ::testing::Values(
            Strain{"all are well", [](int) -> std::int64_t { return -1; }, -1},
            Strain{"one is silent", [](int rank) -> std::int64_t { return rank == 1234 ? 99 : -1; },
                   99},
            // Hosts hear of it one after the other.
            Strain{"the leader is dead",
                   [](int rank) -> std::int64_t { return rank == 0 ? 101 : 101 + rank / 8; }, 101},
            Strain{"the network is cut",
                   [](int rank) -> std::int64_t { return rank >= 1000 ? 110 + rank % 50 : -1; },
                   110}),
        ::testing::Values(1U, 2U, 6U, 8U)));

TEST(Leases, AreHeardSoonAndSwitchWhereAPeriodBegins) {
    for (std::uint32_t period = 1; period <= 64; ++period) {
        Lease lease(period, false);
        EXPECT_LE(lease.interval(), 16U) << period;
        EXPECT_LE(lease.most_late(), 20U) << period;
        std::uint64_t heard = 0;
        std::uint64_t switched = 0;
        for (std::uint64_t i = 0; i < 400; ++i) {
            EXPECT_EQ(lease.hears(i + Lease::kAfter), lease.asks(i)) << period;
            if (lease.asks(i)) {
                const bool begins = (i + Lease::kAfter) % period == 0;
                EXPECT_EQ(lease.word(i, true), begins ? Ballot::Word::Switch : Ballot::Word::Yes);
                EXPECT_EQ(lease.word(i, false), Ballot::Word::Yes);
                switched = begins ? i : switched;
            }
            if (lease.hears(i)) {
                EXPECT_GE(i - heard, Lease::kEvery) << period;
                EXPECT_LE(i - heard, lease.interval()) << period;
                heard = i;
            }
            EXPECT_LE(i - switched, std::max<std::uint64_t>(period, 16)) << period;
        }
        EXPECT_GT(heard, 380U) << period;
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OnRanks, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace deft::executor::test
