// SPDX-License-Identifier: Apache-2.0
// The whole course of tuning: two ranks with real councils, whose calls take as long as the test
// says, on a clock of the test's.
#include "shim/control/tuning_leader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "shim/cuda/event_pool.h"
#include "tests/component/shim/agreement/council_scene.h"

namespace deft::director::test {
namespace {

using agreement::test::eventually;

constexpr int kRanks = 2;
constexpr CollectiveChoice kRing{DEFT_TUNER_RING, DEFT_TUNER_SIMPLE, 0};
constexpr CollectiveChoice kTree{DEFT_TUNER_TREE, DEFT_TUNER_SIMPLE, 0};
constexpr std::uint64_t kEnough = std::uint64_t{2} << 30;  // of memory
constexpr std::int64_t kSecond = 1'000'000'000;

tuning::Key sum_of(std::uint64_t count) {
    return tuning::key_of(Function::AllReduce, count, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);
}
const tuning::Key kLarge = sum_of(1'000'000);
const tuning::Key kSmall = sum_of(1'000);

CollectiveOffer offer() {
    CollectiveOffer offer;
    offer.own = kRing;
    for (const CollectiveChoice& way : {kRing, kTree}) {
        offer.available |= CollectiveOffer::bit_of(way.algorithm, way.protocol);
    }
    offer.worth = offer.available;
    return offer;
}

// How long a call takes on the device.
using Takes = std::int64_t (*)(const tuning::Key& key, const CollectiveChoice& choice);

// A tree is faster, and a channel as good as many.
std::int64_t tree_is_faster(const tuning::Key&, const CollectiveChoice& choice) {
    return choice.algorithm == DEFT_TUNER_TREE ? 40'000'000 : 100'000'000;
}
std::int64_t all_alike(const tuning::Key&, const CollectiveChoice& choice) {
    return choice.channels == 0 ? 100'000'000 : 110'000'000;
}
std::int64_t tree_is_far_slower(const tuning::Key& key, const CollectiveChoice& choice) {
    return choice.algorithm == DEFT_TUNER_TREE ? 700'000'000 : all_alike(key, choice);
}
// Iterations of less than a millisecond.
std::int64_t tree_is_a_bit_faster(const tuning::Key&, const CollectiveChoice& choice) {
    return choice.algorithm == DEFT_TUNER_TREE ? 450'000 : 500'000;
}
std::int64_t tree_is_twice_as_fast(const tuning::Key&, const CollectiveChoice& choice) {
    return choice.algorithm == DEFT_TUNER_TREE ? 250'000 : 500'000;
}
// The tree halves a call that is next to nothing in its iteration.
std::int64_t tree_hardly_matters(const tuning::Key& key, const CollectiveChoice& choice) {
    return key == kLarge ? all_alike(key, choice) : tree_is_faster(key, choice) / 200;
}

class Rank final : public agreement::Member {
public:
    Rank(agreement::test::Scene& scene, int rank)
        : council_(*scene.join(rank)), info_(info_of(rank)), tuner_(info_, council_) {
        tuner_.note_alone(true);
        note_memory(kEnough);
        council_.attach(this);
    }
    ~Rank() {
        tuner_.end();
        council_.detach(this);
    }
    Rank(const Rank&) = delete;

    agreement::Answer prepare(const agreement::Proposal& proposal) noexcept override {
        return tuner_.prepare(proposal).value_or(agreement::Answer::No);
    }
    void decided(std::uint64_t serial, bool commit) noexcept override {
        tuner_.decided(serial, commit);
    }
    void heard(int rank, std::span<const std::byte> report) noexcept override {
        EXPECT_TRUE(tuner_.heard(rank, report));
        ++heard_;
    }

    void note_memory(std::uint64_t bytes, std::int64_t ago_ns = 0) {
        tuner_.note_free_memory(bytes, cuda::host_now() - ago_ns);
    }
    // The way that it gets. seen: the background thread hears of it.
    CollectiveChoice make(const tuning::Key& key, std::int64_t now_ns, bool seen,
                          Takes takes = tree_is_faster) {
        history_ = tuning::history_with(history_, key);
        tuning::Pick pick;
        EXPECT_TRUE(tuner_.call(key, {made_, history_}, pick));
        tuning::SeenCall call;
        call.ordinal = made_++;
        call.key = key;
        call.offer = offer();
        call.order = pick.order;
        call.entry = pick.entry;
        call.sample = pick.sample;
        call.issued_ns = now_ns;
        call.elapsed_ns = pick.sample >= 0 ? takes(key, pick.choice) : -1;
        if (seen) {
            tuner_.note(std::array{call});
        }
        return pick.choice;
    }

    agreement::Council& council() { return council_; }
    const CommunicatorInfo& info() const { return info_; }
    Tuner& tuner() { return tuner_; }
    std::uint64_t made() const { return made_; }
    int heard() const { return heard_; }
    void limit_channels() { info_.limits.channels = true; }
    void take_old_nccl() { info_.table = table_of<22605>(); }

private:
    template <int Version>
    static const NcclTable* table_of() {
        static const NcclTable table = [] {
            NcclTable made;
            made.version = Version;
            return made;
        }();
        return &table;
    }
    static CommunicatorInfo info_of(int rank) {
        CommunicatorInfo info;
        info.table = table_of<22809>();
        info.rank = rank;
        info.nranks = kRanks;
        info.device = rank;
        return info;
    }

    agreement::Council& council_;
    CommunicatorInfo info_;
    Tuner tuner_;
    std::uint64_t made_ = 0;
    std::uint64_t history_ = 0;
    std::atomic<int> heard_{0};
};

class Course : public ::testing::Test {
protected:
    void SetUp() override {
        for (const auto& rank : ranks_) {
            rank->council().created();
        }
        ASSERT_TRUE(scene_.all(agreement::Verdict::On));
    }
    Rank& leader() { return *ranks_[0]; }

    // An iteration of the job on all ranks. unseen: which of its calls nobody hears of.
    void iterate(const std::vector<tuning::Key>& calls, std::size_t unseen = ~std::size_t{0}) {
        for (std::size_t i = 0; i < calls.size(); ++i) {
            const CollectiveChoice choice = leader().make(calls[i], now_ns_, i != unseen, takes_);
            EXPECT_EQ(ranks_[1]->make(calls[i], now_ns_, i != unseen, takes_), choice);
            now_ns_ += takes_(calls[i], choice);
            trees_ += choice.algorithm == DEFT_TUNER_TREE ? 1 : 0;
            latest_[calls[i].count] = choice;
        }
        // The reports of a trial are there before the leader looks.
        const bool trial = !orders_.empty() && orders_.back().phase == tuning::Phase::Trial;
        if (trial && committed_ && !told_ &&
            leader().made() > orders_.back().start + tuning::Table::calls_of(orders_.back()) + 1) {
            told_ = true;
            EXPECT_TRUE(eventually([&] { return leader().heard() >= heard_ + kRanks; }));
        }
        tuning_.lead(calls.size(), true, [this](auto body, std::uint64_t call, auto& serial) {
            return propose(std::move(body), call, serial);
        });
    }
    // Until the leader has settled.
    void settle(const std::vector<tuning::Key>& calls, std::size_t unseen = ~std::size_t{0}) {
        for (int i = 0; i < 3'000 && state() != "settled"; ++i) {
            iterate(calls, unseen);
        }
        EXPECT_EQ(state(), "settled") << tuning_.facts().reason;
        for (int i = 0; i < 100; ++i) {  // it stays so
            iterate(calls, unseen);
        }
    }
    std::string state() const { return tuning_.facts().state; }

    agreement::test::Scene scene_{kRanks};
    std::array<std::unique_ptr<Rank>, kRanks> ranks_{std::make_unique<Rank>(scene_, 0),
                                                     std::make_unique<Rank>(scene_, 1)};
    TuningLeader tuning_{leader().info(), leader().tuner()};
    Takes takes_ = tree_is_faster;
    std::vector<tuning::Order> orders_;                 // proposed
    std::map<std::uint64_t, CollectiveChoice> latest_;  // by count
    int trees_ = 0;                                     // so many calls of the leader's

private:
    // All ranks have heard what became of it when the job goes on.
    bool propose(std::vector<std::byte> body, std::uint64_t call, std::uint64_t& serial) {
        tuning::Order order;
        EXPECT_TRUE(tuning::decode(body, order));
        order.start = call;
        agreement::Proposal proposal;
        proposal.serial = serial = ++serial_;
        proposal.switch_call = call;
        proposal.patience = agreement::test::kPatience;
        proposal.body = std::move(body);
        if (!leader().council().propose(std::move(proposal))) {
            return false;
        }
        for (const auto& rank : ranks_) {
            EXPECT_TRUE(
                eventually([&] { return rank->tuner().outcome(serial) != Tuner::Outcome::Open; }));
        }
        committed_ = leader().tuner().outcome(serial) == Tuner::Outcome::Committed;
        orders_.push_back(std::move(order));
        heard_ = leader().heard();
        told_ = false;
        return true;
    }

    std::int64_t now_ns_ = kSecond;
    std::uint64_t serial_ = 0;
    bool committed_ = false;
    bool told_ = false;
    int heard_ = 0;
};

bool tries(const tuning::Order& order, const tuning::Key& key, const CollectiveChoice& choice) {
    return std::any_of(order.entries.begin(), order.entries.end(), [&](const auto& entry) {
        return entry.key == key && std::find(entry.candidates.begin(), entry.candidates.end(),
                                             choice) != entry.candidates.end();
    });
}

TEST_F(Course, KeepsWhatMakesTheIterationFaster) {
    settle({kLarge, kSmall});
    const TuningFacts facts = tuning_.facts();
    EXPECT_EQ(facts.reason, "");
    EXPECT_NEAR(facts.ratio, 0.4, 0.05);
    ASSERT_EQ(facts.calls.size(), 2u);
    EXPECT_EQ(latest_[kLarge.count].algorithm, DEFT_TUNER_TREE);
    EXPECT_EQ(latest_[kSmall.count].algorithm, DEFT_TUNER_TREE);
}

TEST_F(Course, LeavesNcclsChoiceWhereNothingIsFaster) {
    takes_ = all_alike;
    settle({kLarge, kSmall});
    EXPECT_EQ(tuning_.facts().reason, "NCCL's own choice is the best");
    EXPECT_TRUE(latest_[kLarge.count].own());
    EXPECT_TRUE(latest_[kSmall.count].own());
    ASSERT_EQ(orders_.size(), 2u) << "a look and one part of a trial tell, and end by themselves";
}

TEST_F(Course, TinyIterationsNeedALargeGain) {
    takes_ = tree_is_a_bit_faster;
    settle({kLarge});
    EXPECT_NE(tuning_.facts().reason, "");
    EXPECT_TRUE(latest_[kLarge.count].own());
}

TEST_F(Course, TinyIterationsThatBecomeMuchFasterAreTuned) {
    takes_ = tree_is_twice_as_fast;
    settle({kLarge});
    EXPECT_EQ(tuning_.facts().reason, "");
    EXPECT_EQ(latest_[kLarge.count].algorithm, DEFT_TUNER_TREE);
}

TEST_F(Course, WhatIsFarSlowerIsTriedTwiceAndNotMore) {
    takes_ = tree_is_far_slower;
    settle({kLarge});
    EXPECT_EQ(tuning_.facts().reason, "NCCL's own choice is the best");
    EXPECT_NEAR(tuning_.facts().calls.at(0).own_ms, 100, 1);
    EXPECT_EQ(trees_, static_cast<int>(tuning::kLookRounds));
}

TEST_F(Course, WhatTheIterationDoesNotFeelIsNotKept) {
    takes_ = tree_hardly_matters;
    settle({kLarge, kSmall});
    EXPECT_NE(tuning_.facts().reason, "");
    EXPECT_EQ(orders_.back().phase, tuning::Phase::Compare);
    EXPECT_TRUE(latest_[kSmall.count].own());
}

// Its ratios lie on both sides at first.
TEST_F(Course, ComparesOnceMoreWhatIsInDoubt) {
    const auto compared = [this] {
        return std::count_if(orders_.begin(), orders_.end(), [](const tuning::Order& order) {
            return order.phase == tuning::Phase::Compare;
        });
    };
    for (int i = 0; i < 3'000 && state() != "settled"; ++i) {
        const bool first = compared() == 1 && leader().made() >= orders_.back().start;
        const std::uint64_t window =
            first ? (leader().made() - orders_.back().start) / orders_.back().window_calls : 0;
        takes_ = window == 1 || window == 3 ? tree_is_far_slower : tree_is_faster;
        iterate({kLarge});
    }
    settle({kLarge});
    EXPECT_EQ(compared(), 2);
    EXPECT_EQ(tuning_.facts().reason, "");
    EXPECT_EQ(latest_[kLarge.count].algorithm, DEFT_TUNER_TREE);
}

// What is said to be kept is what all ranks have been told to keep.
TEST_F(Course, NothingIsKeptBeforeAllRanksHaveIt) {
    for (int i = 0; i < 3'000 && (orders_.empty() || orders_.back().phase != tuning::Phase::Fixed);
         ++i) {
        iterate({kLarge});
    }
    ASSERT_EQ(orders_.back().phase, tuning::Phase::Fixed);
    EXPECT_EQ(state(), "comparing");
    EXPECT_TRUE(tuning_.facts().calls.empty());
    settle({kLarge});
    ASSERT_EQ(tuning_.facts().calls.size(), 1u);
    EXPECT_EQ(tuning_.facts().calls[0].choice, "Tree/Simple on 1 channel");
}

// The leader's own device is at work for another communicator.
TEST_F(Course, WaitsForItsTurn) {
    const int other = 0;
    ASSERT_TRUE(tuning::Turn::of(0).take(&other, cuda::host_now()));
    for (int i = 0; i < 100; ++i) {
        iterate({kLarge});
    }
    EXPECT_TRUE(orders_.empty());
    tuning::Turn::of(0).leave(&other);
    settle({kLarge});
    EXPECT_EQ(latest_[kLarge.count].algorithm, DEFT_TUNER_TREE);
    EXPECT_TRUE(tuning::Turn::of(0).free_for(&other, cuda::host_now())) << "it is the next one's";
    EXPECT_TRUE(tuning::Turn::of(1).free_for(&other, cuda::host_now()));
}

// Another rank's device is, and stays so. Its kinds of calls are still new then.
TEST_F(Course, IsPutOffWhereAnotherRankHasNoTurnForIt) {
    const int other = 0;
    ASSERT_TRUE(tuning::Turn::of(1).take(&other, cuda::host_now()));
    for (int i = 0; i < 2'000; ++i) {
        iterate({kLarge});
    }
    tuning::Turn::of(1).leave(&other);
    EXPECT_EQ(state(), "watching");
    EXPECT_EQ(tuning_.facts().reason.find("the ranks did not agree"), 0u);
    EXPECT_TRUE(tuning_.facts().calls.empty());
    EXPECT_TRUE(tuning::Turn::of(0).free_for(&other, cuda::host_now())) << "nothing is under way";
}

// A call that a plan carries out, or that is in a group, is no call that times are known of. A
// window begins with the next one then.
class UnseenCall : public Course, public ::testing::WithParamInterface<std::size_t> {};
TEST_P(UnseenCall, DoesNotHideWhereAWindowBegins) {
    settle({kLarge, kSmall}, GetParam());
    EXPECT_EQ(tuning_.facts().reason, "");
    EXPECT_EQ(latest_[GetParam() == 0 ? kSmall.count : kLarge.count].algorithm, DEFT_TUNER_TREE);
}
INSTANTIATE_TEST_SUITE_P(Places, UnseenCall, ::testing::Values(0, 1));

TEST_F(Course, PutsAsideWhatTheJobStopsToMake) {
    for (int i = 0; i < 200 && orders_.empty(); ++i) {
        iterate({kLarge, kSmall});
    }
    ASSERT_EQ(orders_.size(), 1u);
    ASSERT_TRUE(tries(orders_[0], kSmall, kTree));
    settle({kLarge});
    const TuningFacts facts = tuning_.facts();
    EXPECT_EQ(facts.reason, "");
    ASSERT_EQ(facts.calls.size(), 1u) << "the other one was not measured";
    EXPECT_EQ(latest_[kLarge.count].algorithm, DEFT_TUNER_TREE);
    for (const tuning::Order& order : orders_) {
        EXPECT_FALSE(&order != &orders_[0] && tries(order, kSmall, kTree));
    }
    // It is a new kind when it comes again.
    const std::size_t before = orders_.size();
    for (int i = 0; i < 500 && orders_.size() == before; ++i) {
        iterate({kLarge, kSmall});
    }
    ASSERT_GT(orders_.size(), before);
    EXPECT_TRUE(tries(orders_.back(), kSmall, kTree));
    EXPECT_TRUE(tries(orders_.back(), kLarge, latest_[kLarge.count])) << "that is kept meanwhile";
}

TEST_F(Course, LeavesOutWhatTheJobNoLongerMakes) {
    for (int i = 0; i < 20; ++i) {  // nobody leads yet
        for (const auto& rank : ranks_) {
            rank->make(i < 18 ? kSmall : kLarge, kSecond, true);
        }
    }
    settle({kLarge});
    EXPECT_EQ(tuning_.facts().reason, "");
    for (const tuning::Order& order : orders_) {
        EXPECT_FALSE(tries(order, kSmall, {}));
    }
}

// Another rank does not change channels: other ways are tuned all the same.
class Channels : public Course, public ::testing::WithParamInterface<void (Rank::*)()> {};
TEST_P(Channels, StayNcclsWhereOneRankSaysSo) {
    (ranks_[1].get()->*GetParam())();
    settle({kLarge});
    EXPECT_EQ(tuning_.facts().reason, "");
    EXPECT_EQ(latest_[kLarge.count], kTree);
}
INSTANTIATE_TEST_SUITE_P(Reasons, Channels,
                         ::testing::Values(&Rank::limit_channels, &Rank::take_old_nccl));

class Memory : public Course {
protected:
    bool tries_the_tree() {
        settle({kLarge});
        return std::any_of(orders_.begin(), orders_.end(),
                           [](const tuning::Order& order) { return tries(order, kLarge, kTree); });
    }
};

TEST_F(Memory, OfLateAndEnoughIsThereForOtherAlgorithms) {
    EXPECT_TRUE(tries_the_tree());
}
TEST_F(Memory, TooLittleIsNotGivenToOtherAlgorithms) {
    leader().note_memory(kEnough - 1);
    EXPECT_FALSE(tries_the_tree());
}
TEST_F(Memory, OfSomeTimeAgoIsNotGivenToOtherAlgorithms) {
    leader().note_memory(kEnough, 11 * kSecond);
    EXPECT_FALSE(tries_the_tree());
}
TEST_F(Memory, OfAnotherRankCountsToo) {
    ranks_[1]->note_memory(0);
    settle({kLarge});
    EXPECT_TRUE(latest_[kLarge.count].algorithm != DEFT_TUNER_TREE);
}

}  // namespace
}  // namespace deft::director::test
