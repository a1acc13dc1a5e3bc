// SPDX-License-Identifier: Apache-2.0
// From what the companions say of sums to whether a cycle is proven.
#include "shim/control/proof.h"

#include <gtest/gtest.h>

#include "shim/nccl/sum_mark.h"

namespace deft::director {
namespace {

Gradient bucket(std::uint32_t module, std::uint32_t place, bool last = false) {
    Gradient gradient;
    gradient.count = 1000 + place;
    gradient.mark = pack({DEFT_SUM_BUCKET, module, place, last});
    return gradient;
}

Proof holding(const std::string& who = "1") {
    Proof proof;
    proof.holds = true;
    proof.who = who;
    return proof;
}

TEST(Proof, AMarkIsUnpackedAsItWasPacked) {
    const SumMark mark{DEFT_SUM_BUCKET, 0xfffffffe, SumMark::kMostPlaces - 1, true};
    const SumMark back = unpack(pack(mark));
    EXPECT_EQ(back.kind, mark.kind);
    EXPECT_EQ(back.module, mark.module);
    EXPECT_EQ(back.place, mark.place);
    EXPECT_TRUE(back.last);
    EXPECT_TRUE(is_bucket(pack({DEFT_SUM_BUCKET, 1, 0, false})));
    EXPECT_FALSE(is_bucket(pack({DEFT_SUM_FORWARD, 0, 0, false})));
    EXPECT_FALSE(is_bucket(0));
}

TEST(Proof, AMarkIsOfTheVeryNextSumOfThatBufferAlone) {
    float buffer[4] = {};
    Call call;
    call.count = 4;
    call.type = DEFT_NCCL_FLOAT32;
    call.send = call.receive = buffer;
    const SumMark mark{DEFT_SUM_BUCKET, 3, 1, false};
    mark_next_sum(buffer, sizeof(buffer), mark);
    EXPECT_EQ(take_mark(call), pack(mark));
    EXPECT_EQ(take_mark(call), 0U) << "it was of one call";
    mark_next_sum(buffer, sizeof(buffer), mark);
    Call other = call;
    other.count = 3;
    EXPECT_EQ(take_mark(other), 0U);
    EXPECT_EQ(take_mark(call), 0U) << "another call came first";
    mark_next_sum(buffer, sizeof(buffer), mark);
    other = call;
    other.send = buffer + 1;
    EXPECT_EQ(take_mark(other), 0U) << "not in place";
}

TEST(Proof, AnIterationBeginsWithTheFirstPlaceOfOneModule) {
    EXPECT_EQ(first_place({bucket(1, 2), bucket(1, 3, true), bucket(1, 0), bucket(1, 1)}), 2U);
    EXPECT_EQ(first_place({bucket(1, 4), bucket(1, 1)}), 1U) << "those between them are small";
    constexpr std::size_t kNone = ~std::size_t{0};
    EXPECT_EQ(first_place({bucket(1, 0), bucket(2, 1)}), kNone);
    EXPECT_EQ(first_place({bucket(1, 0), bucket(1, 0)}), kNone);
    EXPECT_EQ(first_place({bucket(1, 0), Gradient{}}), kNone);
    EXPECT_EQ(first_place({}), kNone);
}

TEST(Proof, AViewIsTurnedToTheFirstPlaceWithItsSignature) {
    JobView view;
    view.gradients = {bucket(1, 1, true), bucket(1, 0)};
    view.start = 40;
    begin_at_first_place(view);
    EXPECT_EQ(view.start, 41U);
    EXPECT_EQ(view.gradients.front(), bucket(1, 0));
    EXPECT_EQ(view.signature, signature_of({bucket(1, 0), bucket(1, 1, true)}));
}

TEST(Proof, EveryRankHasToHaveItOfTheSameCompanion) {
    std::map<int, Proof> proofs{{0, holding()}, {1, holding()}};
    EXPECT_EQ(find_unproven(proofs, 2, "1").why, "");
    EXPECT_TRUE(find_unproven(proofs, 3, "1").pending) << "rank 2 has said nothing yet";
    proofs[1].who = "2";
    EXPECT_NE(find_unproven(proofs, 2, "1").why.find("rank 1: its companion is 2"),
              std::string::npos);
    proofs[1] = {};
    proofs[1].pending = true;
    EXPECT_TRUE(find_unproven(proofs, 2, "1").pending);
    proofs[0].holds = false;
    proofs[0].why = "gathered";
    const Unproven refused = find_unproven(proofs, 2, "1");
    EXPECT_EQ(refused.why, "rank 0: gathered");
    EXPECT_FALSE(refused.pending);
    proofs[0] = holding();
    proofs[1] = {};
    proofs[1].why = "none";
    EXPECT_EQ(find_unproven(proofs, 2, "1").why, "rank 1: none");
}

TEST(Proof, OnEveryRankLayersHaveToWaitForThemselves) {
    Proof waiting = holding();
    waiting.layers = true;
    std::map<int, Proof> proofs{{0, waiting}, {1, waiting}};
    EXPECT_TRUE(find_unproven(proofs, 2, "1").layers);
    EXPECT_FALSE(find_unproven(proofs, 3, "1").layers) << "rank 2 has said nothing yet";
    proofs[1].layers = false;
    EXPECT_FALSE(find_unproven(proofs, 2, "1").layers);
    EXPECT_EQ(find_unproven(proofs, 2, "1").why, "") << "all is proven for what is late";
    proofs[1] = waiting;
    proofs[1].who = "2";
    EXPECT_FALSE(find_unproven(proofs, 2, "1").layers);
    proofs[1] = waiting;
    proofs[0].holds = false;
    EXPECT_FALSE(find_unproven(proofs, 2, "1").layers);
}

TEST(Reasons, StayWhereTheyAreAndAreNotWithoutEnd) {
    Reasons reasons;
    EXPECT_EQ(reasons.keep(""), nullptr);
    const char* const first = reasons.keep("rank 1: none");
    EXPECT_STREQ(first, "rank 1: none");
    std::set<const char*> kept{first};
    for (int i = 0; i < 1000; ++i) {
        kept.insert(
            reasons.keep("rank 1: a gradient is read (train.py:" + std::to_string(i) + ")"));
    }
    EXPECT_EQ(kept.size(), Reasons::kMost + 1) << "and one for all further ones";
    EXPECT_EQ(reasons.keep("rank 1: none"), first);
}

TEST(Proof, TravelsAndNothingElseIsTakenForIt) {
    Proof proof = holding("0.1.0");
    proof.holds = false;
    proof.pending = true;
    proof.layers = true;
    proof.why = "too early";
    std::vector<std::byte> bytes = encode(proof);
    Proof back;
    ASSERT_TRUE(decode(bytes, back));
    EXPECT_EQ(back, proof);
    Staged staged;
    EXPECT_FALSE(decode(bytes, staged));
    EXPECT_FALSE(decode(encode(Staged{}), back));
    bytes.pop_back();
    EXPECT_FALSE(decode(bytes, back));
}

}  // namespace
}  // namespace deft::director
