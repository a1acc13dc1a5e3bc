// SPDX-License-Identifier: Apache-2.0
// A rank says yes to a tuned way only where it does the same as all others. The test plays the
// leader.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "shim/cuda/event_pool.h"
#include "shim/tuning/turn.h"
#include "tests/component/shim/control/one_rank.h"

namespace deft::director::test {
namespace {

using agreement::Decision;

constexpr CollectiveChoice kRing{DEFT_TUNER_RING, DEFT_TUNER_SIMPLE, 0};
constexpr CollectiveChoice kRingLl{DEFT_TUNER_RING, DEFT_TUNER_LL, 0};
constexpr CollectiveChoice kTree{DEFT_TUNER_TREE, DEFT_TUNER_SIMPLE, 0};
constexpr CollectiveChoice kPat{DEFT_TUNER_PAT, DEFT_TUNER_SIMPLE, 0};
const tuning::Key kSum =
    tuning::key_of(Function::AllReduce, kCounts[0], DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);
constexpr std::uint64_t kMark = 2 * tuning::CallHistory::kStride;

CollectiveOffer offer() {
    CollectiveOffer offer;
    offer.own = kRing;
    for (const CollectiveChoice& way : {kRing, kRingLl, kTree}) {
        offer.available |= CollectiveOffer::bit_of(way.algorithm, way.protocol);
    }
    offer.worth = offer.available;
    return offer;
}

// The same on every rank that has made nothing but these calls.
std::uint64_t history_of(std::uint64_t calls) {
    std::uint64_t history = 0;
    for (std::uint64_t i = 0; i < calls; ++i) {
        history = tuning::history_with(history, kSum);
    }
    return history;
}

// Sets a variable for as long as it lives.
class Variable {
public:
    Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
    ~Variable() { ::unsetenv(name_); }

private:
    const char* name_;
};

class TunedRank : public OneRank {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(OneRank::SetUp());
        scene_.join(0)->created();
        ASSERT_NO_FATAL_FAILURE(join(1));
        ASSERT_TRUE(scene_.all(agreement::Verdict::On));
        for (int iteration = 0; iteration < 8; ++iteration) {
            for (const std::uint64_t count : kCounts) {
                track_.feed(record(ordinal_++, count));
            }
        }
    }

    // Calls of the job, to which NCCL offers this.
    std::vector<tuning::Pick> make(std::uint64_t calls, const CollectiveOffer& offered = offer()) {
        std::vector<tuning::SeenCall> seen;
        std::vector<tuning::Pick> picks;
        for (std::uint64_t i = 0; i < calls; ++i) {
            history_ = tuning::history_with(history_, kSum);
            tuning::Pick pick;
            EXPECT_TRUE(director_->tune(kSum, {made_, history_}, pick));
            picks.push_back(pick);
            tuning::SeenCall call;
            call.serial = 1;
            call.ordinal = made_++;
            call.key = kSum;
            call.offer = offered;
            seen.push_back(call);
        }
        director_->tick(track_, seen);
        return picks;
    }
    // What becomes of an order of the leader's, from the rank's next call but one on.
    Decision order(const std::vector<CollectiveChoice>& candidates, std::uint64_t mark = kMark,
                   std::uint64_t history = history_of(kMark + 1),
                   tuning::Phase phase = tuning::Phase::Trial) {
        tuning::Order order;
        order.phase = phase;
        order.window_calls = 1;
        order.rounds = tuning::kRounds;
        order.mark = mark;
        order.history = history;
        order.entries = {{kSum, candidates}};
        agreement::Proposal proposal;
        proposal.serial = ++serial_;
        proposal.switch_call = made_ + 1;
        proposal.body = tuning::encode(order);
        proposal.patience = agreement::test::kPatience;
        EXPECT_TRUE(eventually([&] { return scene_[0].propose(proposal); }));
        EXPECT_TRUE(eventually([&] { return scene_.member(0).decisions().count(serial_) == 1; }));
        return scene_[1].wait_decision(serial_,
                                       agreement::Clock::now() + agreement::test::kPatience);
    }

    std::uint64_t made_ = 0;
    std::uint64_t history_ = 0;
    std::uint64_t serial_ = 0;
};

TEST_F(TunedRank, DoesAsTheOthersFromTheNamedCallOn) {
    make(kMark + 1);
    ASSERT_EQ(order({{}, kTree}), Decision::Commit);
    const std::vector<tuning::Pick> picks = make(6);
    EXPECT_EQ(picks[0].order, 0u);
    EXPECT_EQ(picks[1].choice, CollectiveChoice{});
    EXPECT_EQ(picks[2].choice, kTree);
}

// Else it would change its way at another call than they do.
TEST_F(TunedRank, RefusesWhereItHasMadeOtherCalls) {
    make(kMark + 1);
    EXPECT_EQ(order({{}, kTree}, kMark, history_of(kMark)), Decision::Cancel)
        << "it has missed one, or they have";
    for (const tuning::Pick& pick : make(6)) {
        EXPECT_EQ(pick.order, 0u);
    }
    EXPECT_EQ(order({{}, kTree}), Decision::Commit);
}

TEST_F(TunedRank, RefusesWhereItIsBehind) {
    make(kMark);
    EXPECT_EQ(order({{}, kTree}), Decision::Cancel);
    make(1);
    EXPECT_EQ(order({{}, kTree}), Decision::Commit);
}

// A nonblocking communicator, or a child whose handle was found late.
TEST_F(TunedRank, RefusesWhereItHasKnownTheCommunicatorLate) {
    made_ = 3;
    make(kMark + 1);
    EXPECT_EQ(order({{}, kTree}), Decision::Cancel);
}

TEST_F(TunedRank, RefusesWhatItsNcclDoesNotHave) {
    make(kMark + 1);
    EXPECT_EQ(order({{}, kPat}), Decision::Cancel);
    EXPECT_EQ(order({{}, kTree}), Decision::Commit);
}

TEST_F(TunedRank, RefusesWhatItsNcclHasNotBeenAskedFor) {
    make(kMark);
    make(1, {});
    EXPECT_EQ(order({{}, kTree}), Decision::Cancel);
}

TEST_F(TunedRank, LeavesSpecialHardwareAlone) {
    CollectiveOffer special = offer();
    special.own = {DEFT_TUNER_NVLS, DEFT_TUNER_SIMPLE, 0};
    make(kMark + 1, special);
    const CollectiveChoice narrow{DEFT_TUNER_UNDEF, DEFT_TUNER_UNDEF, 2};
    EXPECT_EQ(order({{}, narrow}), Decision::Cancel);
    EXPECT_EQ(order({{}, kRing}), Decision::Cancel);
    EXPECT_EQ(order({{}, {}}), Decision::Commit);
}

TEST_F(TunedRank, RefusesAnAlgorithmWhereOtherCommunicatorsAreAtWork) {
    CallRecord other = record(0, 10);
    other.comm_serial = 2;
    for (int iteration = 0; iteration < 8; ++iteration) {
        track_.feed(record(ordinal_++, kCounts[0]));
        track_.feed(other);
    }
    make(kMark + 1);
    EXPECT_EQ(order({{}, kTree}), Decision::Cancel) << "connections are made in the call";
    EXPECT_EQ(order({{}, kRingLl}), Decision::Commit) << "there are some already";
}

// Each would take the other's slow calls for its own.
TEST_F(TunedRank, OneCommunicatorIsTriedAtATime) {
    make(kMark + 1);
    const int other = 0;
    tuning::Turn& turn = tuning::Turn::of(0);
    ASSERT_TRUE(turn.take(&other, cuda::host_now()));
    EXPECT_EQ(order({{}, kRingLl}), Decision::Cancel);
    EXPECT_EQ(order({kRing}, kMark, history_of(kMark + 1), tuning::Phase::Fixed), Decision::Commit)
        << "nothing is measured";
    turn.leave(&other);
    make(2);
    ASSERT_EQ(order({{}, kRingLl}), Decision::Commit);
    EXPECT_FALSE(turn.take(&other, cuda::host_now()));
    director_->end(false);
    director_ = nullptr;
    EXPECT_TRUE(turn.take(&other, cuda::host_now()));
    turn.leave(&other);
}

// What the job had said when its communicator was made.
class LimitedRank : public TunedRank,
                    public ::testing::WithParamInterface<std::pair<const char*, const char*>> {
protected:
    static constexpr CollectiveChoice kNarrow{DEFT_TUNER_UNDEF, DEFT_TUNER_UNDEF, 2};
    bool commits(const CollectiveChoice& choice) { return order({{}, choice}) == Decision::Commit; }

    Variable variable_{GetParam().first, GetParam().second};
};

class LeftAlone : public LimitedRank {};
TEST_P(LeftAlone, WhatTheJobItselfHasSaidStands) {
    make(kMark + 1);
    EXPECT_FALSE(commits(kNarrow));
    EXPECT_FALSE(commits(kRingLl));
}
INSTANTIATE_TEST_SUITE_P(Limits, LeftAlone,
                         ::testing::Values(std::pair{"NCCL_ALGO", "Ring"},
                                           std::pair{"NCCL_PROTO", "LL"},
                                           std::pair{"NCCL_TUNER_PLUGIN", "libown.so"},
                                           std::pair{"NCCL_ENV_PLUGIN", "site"},
                                           std::pair{"NCCL_NET", "IB"},
                                           std::pair{"NCCL_NET", "AWS Libfabric"}));

// NCCL has found one by itself, and the job's variables are what that library says.
struct Library {
    void* handle = ::dlopen(ENV_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ~Library() { ::dlclose(handle); }
};
class WithEnvLibrary : public TunedRank {
protected:
    Library library_;
};
TEST_F(WithEnvLibrary, WhatTheJobItselfHasSaidStands) {
    ASSERT_NE(library_.handle, nullptr) << ::dlerror();
    make(kMark + 1);
    EXPECT_FALSE(order({{}, kRingLl}) == Decision::Commit);
}

class LimitedChannels : public LimitedRank {};
TEST_P(LimitedChannels, SayNothingOfAlgorithms) {
    make(kMark + 1);
    EXPECT_FALSE(commits(kNarrow));
    EXPECT_TRUE(commits(kTree));
}
INSTANTIATE_TEST_SUITE_P(Limits, LimitedChannels,
                         ::testing::Values(std::pair{"NCCL_MAX_NCHANNELS", "1"},
                                           std::pair{"NCCL_MIN_CTAS", "4"}));

class Unlimited : public LimitedRank {};
TEST_P(Unlimited, IsWhatSaysNothingOfWays) {
    make(kMark + 1);
    EXPECT_TRUE(commits(kNarrow));
}
INSTANTIATE_TEST_SUITE_P(Limits, Unlimited,
                         ::testing::Values(std::pair{"NCCL_NET", "socket"},
                                           std::pair{"NCCL_NET", "deft"},
                                           std::pair{"NCCL_TUNER_PLUGIN", "libnccl-net-deft.so"},
                                           std::pair{"NCCL_ENV_PLUGIN", "none"},
                                           std::pair{"NCCL_ALGO", ""}));

// The job may set variables while other threads of this library are at work.
TEST_F(TunedRank, TheEnvironmentIsNotReadLater) {
    make(kMark + 1);
    const Variable variable("NCCL_ALGO", "Ring");
    EXPECT_EQ(order({{}, kTree}), Decision::Commit);
}

// The connection to the others ends in the middle of a trial: it ends where they end it.
TEST_F(TunedRank, ATrialEndsByItself) {
    make(kMark + 1);
    ASSERT_EQ(order({{}, kTree}), Decision::Commit);
    make(1);
    scene_[0].leave();
    const std::vector<tuning::Pick> picks = make(2 * tuning::kRounds + 4);
    EXPECT_EQ(std::count_if(picks.begin(), picks.end(),
                            [](const auto& pick) { return pick.choice == kTree; }),
              static_cast<std::ptrdiff_t>(tuning::kRounds));
    for (const tuning::Pick& pick : std::vector(picks.end() - 4, picks.end())) {
        EXPECT_EQ(pick.choice, CollectiveChoice{});
    }
}

}  // namespace
}  // namespace deft::director::test
