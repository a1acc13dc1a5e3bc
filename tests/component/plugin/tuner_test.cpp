// SPDX-License-Identifier: Apache-2.0
// Every version of the tuner table, as NCCL calls it.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "base/collective_choice.h"
#include "plugin/nccl_tuner.h"

namespace deft::tuner::testing {
namespace {

constexpr CollectiveChoice kTree{DEFT_TUNER_TREE, DEFT_TUNER_SIMPLE, 0};

using Costs = std::array<std::array<float, DEFT_TUNER_PROTOCOLS>, DEFT_TUNER_ALGORITHMS>;

Costs ring_is_best() {
    Costs costs;
    for (auto& row : costs) {
        row.fill(DEFT_TUNER_IGNORE);
    }
    costs[DEFT_TUNER_TREE] = {40, DEFT_TUNER_IGNORE, 30};
    costs[DEFT_TUNER_RING] = {20, 500, 10};
    return costs;
}

template <class Table>
int start(const Table& table, void** context, std::size_t nodes = 2) {
    if constexpr (requires { table.finalize; }) {
        deft_tuner_nvl_domains_t domains{2, 1, 1};
        double constants[64] = {};
        return table.init(context, 1, 2, nodes, nullptr, &domains, constants);
    } else {
        return table.init(2, nodes, nullptr, context);
    }
}

template <class Table>
int finish(const Table& table, void* context) {
    if constexpr (requires { table.finalize; }) {
        return table.finalize(context);
    } else {
        return table.destroy(context);
    }
}

template <class Table>
int ask(const Table& table, void* context, Costs& costs, int& channels, int registered = 0) {
    auto* const rows = reinterpret_cast<float**>(costs.data());
    if constexpr (std::is_same_v<Table, deft_tuner_v3_t>) {
        return table.getCollInfo(context, DEFT_TUNER_ALL_REDUCE, 4096, 1, rows,
                                 DEFT_TUNER_ALGORITHMS, DEFT_TUNER_PROTOCOLS, &channels);
    } else {
        return table.getCollInfo(context, DEFT_TUNER_ALL_REDUCE, 4096, 1, rows,
                                 DEFT_TUNER_ALGORITHMS, DEFT_TUNER_PROTOCOLS, registered,
                                 &channels);
    }
}

template <class Table>
class TunerTable : public ::testing::Test {
protected:
    TunerTable() { EXPECT_EQ(start(table(), &context_), DEFT_NET_SUCCESS); }
    ~TunerTable() override { EXPECT_EQ(finish(table(), context_), DEFT_NET_SUCCESS); }

    static const Table& table() {
        if constexpr (std::is_same_v<Table, deft_tuner_v3_t>) {
            return kTableV3;
        } else if constexpr (std::is_same_v<Table, deft_tuner_v4_t>) {
            return kTableV4;
        } else if constexpr (std::is_same_v<Table, deft_tuner_v5_t>) {
            return kTableV5;
        } else {
            return kTableV6;
        }
    }
    void* context_ = nullptr;
    Costs costs_ = ring_is_best();
    int channels_ = 0;
};

using Versions =
    ::testing::Types<deft_tuner_v3_t, deft_tuner_v4_t, deft_tuner_v5_t, deft_tuner_v6_t>;
TYPED_TEST_SUITE(TunerTable, Versions);

TYPED_TEST(TunerTable, ChangesNothingUnlessItIsAskedTo) {
    EXPECT_STREQ(this->table().name, "deft");
    ASSERT_NE(this->context_, nullptr);
    EXPECT_EQ(ask(this->table(), this->context_, this->costs_, this->channels_), DEFT_NET_SUCCESS);
    EXPECT_EQ(this->costs_, ring_is_best());
    EXPECT_EQ(this->channels_, 0);
    const TunedCall call{CollectiveChoice{}};
    EXPECT_EQ(ask(this->table(), this->context_, this->costs_, this->channels_), DEFT_NET_SUCCESS);
    EXPECT_EQ(this->costs_, ring_is_best());
    EXPECT_EQ(this->channels_, 0);
}

TYPED_TEST(TunerTable, TellsWhatNcclHas) {
    const TunedCall call{CollectiveChoice{}};
    ask(this->table(), this->context_, this->costs_, this->channels_);
    const CollectiveOffer offer = call.offer();
    EXPECT_EQ(offer.own, (CollectiveChoice{DEFT_TUNER_RING, DEFT_TUNER_SIMPLE, 0}));
    EXPECT_TRUE(offer.has(kTree));
    EXPECT_TRUE(offer.has({DEFT_TUNER_RING, DEFT_TUNER_LL128, 0}));
    EXPECT_FALSE(offer.has({DEFT_TUNER_TREE, DEFT_TUNER_LL128, 0}));
    EXPECT_FALSE(offer.has({DEFT_TUNER_PAT, DEFT_TUNER_SIMPLE, 0}));
    EXPECT_EQ(offer.worth & CollectiveOffer::bit_of(DEFT_TUNER_RING, DEFT_TUNER_LL128), 0u)
        << "NCCL thinks it 50 times slower";
    EXPECT_NE(offer.worth & CollectiveOffer::bit_of(DEFT_TUNER_TREE, DEFT_TUNER_LL), 0u);
}

TYPED_TEST(TunerTable, MakesTheWantedWayTheCheapest) {
    const TunedCall call{{DEFT_TUNER_TREE, DEFT_TUNER_SIMPLE, 2}};
    ask(this->table(), this->context_, this->costs_, this->channels_);
    Costs wanted = ring_is_best();
    wanted[DEFT_TUNER_TREE][DEFT_TUNER_SIMPLE] = 0;
    EXPECT_EQ(this->costs_, wanted);
    EXPECT_EQ(this->channels_, 2);
}

TYPED_TEST(TunerTable, NeverAsksForWhatCannotBeHad) {
    const TunedCall call{{DEFT_TUNER_PAT, DEFT_TUNER_SIMPLE, 1}};
    ask(this->table(), this->context_, this->costs_, this->channels_);
    EXPECT_EQ(this->costs_, ring_is_best());
    EXPECT_EQ(this->channels_, 0);
}

TYPED_TEST(TunerTable, ASmallerTableIsNotReadBeyondItsEnd) {
    struct {
        float costs[2][DEFT_TUNER_PROTOCOLS] = {{40, -1, 30}, {20, -1, 10}};
        float behind = 1;  // as an algorithm it would be the best
    } small;
    auto* const rows = reinterpret_cast<float**>(&small.costs[0][0]);
    const TunedCall call{kTree};
    if constexpr (std::is_same_v<TypeParam, deft_tuner_v3_t>) {
        this->table().getCollInfo(this->context_, 4, 64, 1, rows, 2, 3, &this->channels_);
    } else {
        this->table().getCollInfo(this->context_, 4, 64, 1, rows, 2, 3, 0, &this->channels_);
    }
    EXPECT_EQ(small.costs[DEFT_TUNER_TREE][DEFT_TUNER_SIMPLE], 0);
    EXPECT_EQ(small.behind, 1);
    EXPECT_EQ(call.offer().own.algorithm, DEFT_TUNER_RING);
}

TYPED_TEST(TunerTable, ATableOfAnotherShapeIsLeftAlone) {
    const TunedCall call{kTree};
    auto* const rows = reinterpret_cast<float**>(this->costs_.data());
    if constexpr (std::is_same_v<TypeParam, deft_tuner_v3_t>) {
        this->table().getCollInfo(this->context_, 4, 64, 1, rows, 5, 4, &this->channels_);
    } else {
        this->table().getCollInfo(this->context_, 4, 64, 1, rows, 5, 4, 0, &this->channels_);
    }
    EXPECT_EQ(this->costs_, ring_is_best());
    EXPECT_EQ(call.offer().available, 0u);
}

TYPED_TEST(TunerTable, IsOfTheCallOnItsOwnThreadAlone) {
    const TunedCall call{kTree};
    std::thread([this] {
        ask(this->table(), this->context_, this->costs_, this->channels_);
    }).join();
    EXPECT_EQ(this->costs_, ring_is_best());
    EXPECT_EQ(call.offer().available, 0u);
}

TYPED_TEST(TunerTable, LeavesOneNodeAlone) {
    void* context = nullptr;
    ASSERT_EQ(start(this->table(), &context, 1), DEFT_NET_SUCCESS);
    const TunedCall call{kTree};
    ask(this->table(), context, this->costs_, this->channels_);
    EXPECT_EQ(this->costs_, ring_is_best());
    EXPECT_EQ(call.offer().available, 0u);
    EXPECT_EQ(finish(this->table(), context), DEFT_NET_SUCCESS);
}

// Asked twice for one call, as for a group's: nobody knows which of the two is meant.
TYPED_TEST(TunerTable, MoreThanOneQuestionTellsNothing) {
    const TunedCall call{CollectiveChoice{}};
    ask(this->table(), this->context_, this->costs_, this->channels_);
    ask(this->table(), this->context_, this->costs_, this->channels_);
    EXPECT_EQ(call.offer().available, 0u);
}

// Whether buffers are registered may differ between ranks, so a wish is met all the same.
TYPED_TEST(TunerTable, RegisteredBuffersAreNotTuned) {
    if constexpr (!std::is_same_v<TypeParam, deft_tuner_v3_t>) {
        const TunedCall call{kTree};
        ask(this->table(), this->context_, this->costs_, this->channels_, 1);
        EXPECT_EQ(call.offer().available, 0u);
        EXPECT_EQ(this->costs_[DEFT_TUNER_TREE][DEFT_TUNER_SIMPLE], 0);
    }
}

// It does not say what NCCL has, so what would be asked for might not be there.
TEST(TunerTableV2, LeavesAllToNccl) {
    void* context = nullptr;
    ASSERT_EQ(start(kTableV2, &context), DEFT_NET_SUCCESS);
    const TunedCall call{kTree};
    int algorithm = DEFT_TUNER_UNDEF;
    int protocol = DEFT_TUNER_UNDEF;
    int channels = 0;
    EXPECT_EQ(kTableV2.getCollInfo(context, DEFT_TUNER_ALL_REDUCE, 4096, 0, 0, 1, &algorithm,
                                   &protocol, &channels),
              DEFT_NET_SUCCESS);
    EXPECT_EQ(algorithm, DEFT_TUNER_UNDEF);
    EXPECT_EQ(protocol, DEFT_TUNER_UNDEF);
    EXPECT_EQ(channels, 0);
    EXPECT_EQ(call.offer().available, 0u);
    EXPECT_EQ(finish(kTableV2, context), DEFT_NET_SUCCESS);
}

}  // namespace
}  // namespace deft::tuner::testing
