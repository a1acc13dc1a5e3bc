// SPDX-License-Identifier: Apache-2.0
// Children of a communicator: their ranks meet through the parent's leader.
#include "tests/component/shim/agreement/council_scene.h"

namespace deft::agreement::test {
namespace {

Council* child_of(Council& parent, std::uint64_t child, int nranks, int rank, const Terms& with) {
    return kept(inherit(parent, child, nranks, rank, with));
}

bool becomes(const Council* council, Verdict verdict) {
    return eventually([&] { return council->verdict() == verdict; });
}

void leave_all(const std::vector<Council*>& councils) {
    for (Council* council : councils) {
        council->leave();
    }
}

// Ranks `parents` of the scene, in their order in the child.
std::vector<Council*> split(Scene& scene, std::uint64_t child, const std::vector<int>& parents,
                            const Terms& with = terms()) {
    std::vector<Council*> made;
    for (std::size_t rank = 0; rank < parents.size(); ++rank) {
        made.push_back(child_of(scene[parents[rank]], child, static_cast<int>(parents.size()),
                                static_cast<int>(rank), with));
        made.back()->created();
    }
    return made;
}

TEST(ChildCouncil, HalvesAgreeEachForItself) {
    Scene scene(4);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    const auto even = split(scene, 100, {0, 2});
    const auto odd = split(scene, 101, {3, 1});  // led by a rank that does not lead the parent
    for (const auto& half : {even, odd}) {
        EXPECT_TRUE(becomes(half[0], Verdict::On));
        EXPECT_TRUE(becomes(half[1], Verdict::On));
        EXPECT_TRUE(half[0]->is_leader());
        EXPECT_FALSE(half[1]->is_leader());
    }
    Recorder first;
    Recorder second;
    odd[0]->attach(&first);
    odd[1]->attach(&second);
    ASSERT_TRUE(odd[0]->propose(proposal(1)));
    EXPECT_TRUE(eventually([&] { return second.decisions().count(1) == 1; }));
    EXPECT_TRUE(second.decisions()[1]);
    odd[0]->detach(&first);
    odd[1]->detach(&second);
    leave_all(even);
    leave_all(odd);
}

TEST(ChildCouncil, MayBeAskedForBeforeItsLeaderHasSpoken) {
    Scene scene(3);
    scene.join_all();  // at once: not even the parent has decided
    Council* const last = child_of(scene[2], 7, 3, 2, terms());
    Council* const middle = child_of(scene[0], 7, 3, 1, terms());
    last->created();
    middle->created();
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(last->verdict(), Verdict::Pending);
    Council* const first = child_of(scene[1], 7, 3, 0, terms());
    first->created();
    for (Council* council : {first, middle, last}) {
        EXPECT_TRUE(becomes(council, Verdict::On));
        council->leave();
    }
}

TEST(ChildCouncil, OutlivesItsParent) {
    Scene scene(3);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    const auto child = split(scene, 9, {0, 1, 2});
    for (Council* council : child) {
        ASSERT_TRUE(becomes(council, Verdict::On));
    }
    for (int rank = 0; rank < 3; ++rank) {
        scene.leave(rank);
    }
    Recorder member;
    child[0]->attach(&member);
    EXPECT_TRUE(child[2]->report(bytes("still here")));
    EXPECT_TRUE(eventually([&] { return member.heard().size() == 1; }));
    child[0]->detach(&member);
    leave_all(child);
}

TEST(ChildCouncil, OfAShrunkCommunicatorWhoseMemberIsGone) {
    Scene scene(4);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    scene.leave(2);
    ASSERT_TRUE(
        eventually([&] { return !scene[0].open() && !scene[1].open() && !scene[3].open(); }));
    const auto child = split(scene, 11, {0, 1, 3});
    for (Council* council : child) {
        EXPECT_TRUE(becomes(council, Verdict::On));
    }
    leave_all(child);
}

TEST(ChildCouncil, WithoutTheParentsLeaderIsOff) {
    Scene scene(3);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    Council* const waiting = child_of(scene[2], 13, 2, 1, terms());
    waiting->created();
    scene.leave(0);
    EXPECT_TRUE(becomes(waiting, Verdict::Off));
    Council* const later = child_of(scene[2], 14, 2, 1, terms());
    later->created();
    EXPECT_TRUE(becomes(later, Verdict::Off));
    leave_all({waiting, later});
}

TEST(ChildCouncil, OfAParentThatIsOffIsOff) {
    Scene scene(2);
    scene.join(0)->created();
    scene.join(1, terms("DEFT_MODE=exact"))->created();
    ASSERT_TRUE(scene.all(Verdict::Off));
    const auto child = split(scene, 15, {0, 1}, terms("same", 200ms));
    for (Council* council : child) {
        EXPECT_TRUE(becomes(council, Verdict::Off));
        council->leave();
    }
}

TEST(ChildCouncil, WhoseLeaderNeverSpeaksIsOff) {
    Scene scene(2);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    Council* const child = child_of(scene[1], 17, 2, 1, terms("same", 100ms));
    child->created();
    EXPECT_TRUE(becomes(child, Verdict::Off));
    EXPECT_NE(child->reason().find("has not said where to meet"), std::string::npos);
    child->leave();
}

}  // namespace
}  // namespace deft::agreement::test
