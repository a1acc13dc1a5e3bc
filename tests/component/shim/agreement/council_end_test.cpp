// SPDX-License-Identifier: Apache-2.0
// What is left of councils that ranks have left: nothing, whether their ranks had agreed or not.
#include <malloc.h>

#include "tests/component/shim/agreement/council_scene.h"

namespace deft::agreement::test {
namespace {

// AddressSanitizer's allocator does not say what it has given out.
std::size_t bytes_held() {
    return ::mallinfo2().uordblks;
}

// Communicators of two ranks of this process, ended before or after the verdict.
void make_and_drop(int communicators) {
    for (int i = 0; i < communicators; ++i) {
        const deft_nccl_unique_id_t id = make_id();
        std::vector<CouncilRef> ranks;
        for (int rank = 0; rank < 2; ++rank) {
            ranks.push_back(join(id, 2, rank, terms()));
            ASSERT_TRUE(ranks.back());
            ranks.back()->created();
        }
        if (i % 2 == 0) {
            ASSERT_EQ(ranks[1]->wait_verdict(Clock::now() + kPatience), Verdict::On);
        }
        for (const CouncilRef& council : ranks) {
            council->leave();
        }
    }
}

TEST(LeftCouncils, AreFreed) {
    constexpr int kMade = 400;  // more than the ids that are remembered
    const std::size_t before = Council::alive();
    const auto gone = [before] { return Council::alive() == before; };
    make_and_drop(kMade);
    ASSERT_TRUE(eventually(gone)) << Council::alive() - before << " are left";
    const std::size_t held = bytes_held();
    make_and_drop(kMade);
    ASSERT_TRUE(eventually(gone)) << Council::alive() - before << " are left";
    EXPECT_LT(bytes_held(), held + 100 * kMade);
}

TEST(LeftCouncils, OfChildrenAreFreed) {
    Scene scene(2);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    const std::size_t before = Council::alive();
    for (std::uint64_t child = 0; child < 100; ++child) {
        std::vector<CouncilRef> ranks;
        for (int rank = 0; rank < 2; ++rank) {
            ranks.push_back(inherit(scene[1 - rank], child, 2, rank, terms()));
            ASSERT_TRUE(ranks.back());
            ranks.back()->created();
        }
        if (child % 2 == 0) {
            ASSERT_EQ(ranks[1]->wait_verdict(Clock::now() + kPatience), Verdict::On);
        }
        for (const CouncilRef& council : ranks) {
            council->leave();
        }
    }
    EXPECT_TRUE(eventually([before] { return Council::alive() == before; }))
        << Council::alive() - before << " are left";
}

// The thread that ends a communicator does not wait for the others that are at work with it.
TEST(LeftCouncils, AnswerWhoeverHasAReference) {
    Scene scene(2);
    const std::size_t before = Council::alive();
    CouncilRef council = join(scene.id, 2, 0, terms());
    const CouncilRef other(council.get());
    council->leave();
    council = {};
    EXPECT_TRUE(eventually([&] {
        Council* const rank = kept(join(make_id(), 1, 0, terms()));  // a turn of the thread's
        rank->leave();
        return true;
    }));
    EXPECT_GT(Council::alive(), before);
    other->created();
    other->leave();
    EXPECT_FALSE(other->report(bytes("late")));
    EXPECT_FALSE(other->propose(proposal(1)));
    other->answer(1, true);
    EXPECT_EQ(other->wait_decision(1, Clock::now() + kPatience), Decision::Lost);
    EXPECT_NE(other->wait_verdict(Clock::now() + kPatience), Verdict::On);
    (void)other->reason();
}

}  // namespace
}  // namespace deft::agreement::test
