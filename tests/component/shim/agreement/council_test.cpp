// SPDX-License-Identifier: Apache-2.0
// What ranks agree on, with all of them in this process.
#include "tests/component/shim/agreement/council_scene.h"
#include "tests/component/shim/agreement/raw_peer.h"

namespace deft::agreement::test {
namespace {

TEST(Council, AllAgree) {
    Scene scene(4);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    EXPECT_TRUE(scene[0].is_leader());
    for (int rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(scene[rank].is_leader(), rank == 0);
        EXPECT_TRUE(scene[rank].open());
        EXPECT_TRUE(eventually(
            [&] { return scene.member(rank).verdicts() == std::vector<Verdict>{Verdict::On}; }));
    }
}

TEST(Council, EightRanksInAnyOrder) {
    Scene scene(8);
    for (const int rank : {0, 5, 7, 1, 2, 6, 4, 3}) {
        scene.join(rank)->created();
    }
    EXPECT_TRUE(scene.all(Verdict::On));
}

TEST(Council, OneRankNeedsNobody) {
    Scene scene(1);
    scene.join_all();
    EXPECT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    EXPECT_TRUE(eventually([&] { return scene.member(0).decisions().count(1) == 1; }));
    EXPECT_TRUE(scene.member(0).decisions()[1]);
}

TEST(Council, ManyCommunicatorsAtOnce) {
    std::vector<std::unique_ptr<Scene>> scenes;
    for (int i = 0; i < 20; ++i) {
        scenes.push_back(std::make_unique<Scene>(3));
    }
    for (int rank = 0; rank < 3; ++rank) {
        for (const auto& scene : scenes) {
            scene->join(rank)->created();
        }
    }
    for (const auto& scene : scenes) {
        EXPECT_TRUE(scene->all(Verdict::On));
    }
}

TEST(Council, ARankThatNeverComesTurnsAllOff) {
    Scene scene(3);
    scene.join(0, terms("same", 300ms))->created();
    scene.join(1, terms("same"))->created();
    ASSERT_TRUE(scene.all(Verdict::Off));
    EXPECT_NE(scene[0].reason().find("rank 2 did not answer"), std::string::npos)
        << scene[0].reason();
    EXPECT_EQ(scene[0].reason(), scene[1].reason());
    // Who comes late hears the same.
    scene.join(2, terms("same"));
    ASSERT_TRUE(scene.all(Verdict::Off));
    EXPECT_EQ(scene[2].reason(), scene[0].reason());
    EXPECT_FALSE(scene[2].open());
}

TEST(Council, TheTimeoutCountsFromTheCreation) {
    Scene scene(2);
    scene.join(0, terms("same", 50ms));  // NCCL's own initialisation waits for rank 1
    std::this_thread::sleep_for(500ms);
    EXPECT_EQ(scene[0].verdict(), Verdict::Pending);
    scene.join(1, terms("same", 50ms));
    EXPECT_TRUE(scene.all(Verdict::On));
}

TEST(Council, OtherSettingsAreNamed) {
    Scene scene(3);
    scene.join(0)->created();
    scene.join(1)->created();
    scene.join(2, terms("DEFT_MODE=exact DEFT_MAX_DELAY=1"))->created();
    ASSERT_TRUE(scene.all(Verdict::Off));
    for (int rank = 0; rank < 3; ++rank) {
        const std::string reason = scene[rank].reason();
        EXPECT_NE(reason.find("rank 2"), std::string::npos) << reason;
        EXPECT_NE(reason.find("DEFT_MODE=exact"), std::string::npos) << reason;
        EXPECT_NE(reason.find("DEFT_MODE=deft"), std::string::npos) << reason;
        EXPECT_EQ(reason.find("DEFT_MAX_DELAY"), std::string::npos) << reason;
    }
}

TEST(Council, OtherNcclVersionIsNamed) {
    Scene scene(2);
    scene.join(0)->created();
    Terms other = terms();
    other.nccl_version = 22707;
    scene.join(1, other)->created();
    ASSERT_TRUE(scene.all(Verdict::Off));
    EXPECT_NE(scene[1].reason().find("NCCL 22707"), std::string::npos) << scene[1].reason();
}

// One release number may have many builds: what tells them apart comes through whole.
TEST(Council, AnotherBuildOfTheReleaseIsNamed) {
    Scene scene(2);
    scene.join(0)->created();
    const wire::Trailer trailer = trailer_of(scene.id);
    wire::Hello hello = hello_for(trailer, 1, 2);
    hello.deft_version += "+0123456789ab-dirty";
    const UniqueFd fd = call(trailer);
    say(fd, frame(trailer, 1, wire::Type::Hello, wire::encode(hello)));
    ASSERT_TRUE(eventually([&] { return scene[0].verdict() == Verdict::Off; }));
    EXPECT_NE(scene[0].reason().find("deft " + hello.deft_version), std::string::npos)
        << scene[0].reason();
}

// In a job that is being upgraded: the rank's calls are forwarded, and the reason says why.
TEST(Council, ATrailerOfAnotherReleaseIsNamed) {
    Scene scene(1);
    deft_nccl_unique_id_t id = scene.id;
    for (const int version : {wire::kVersion - 1, wire::kVersion + 1}) {
        id.internal[wire::kTrailerAt + 4] = static_cast<char>(version);
        std::string why;
        EXPECT_FALSE(has_trailer(id, &why));
        EXPECT_NE(why.find("runs another release of deft"), std::string::npos) << why;
        EXPECT_FALSE(join(id, 2, 1, terms()));
    }
}

TEST(Council, WithoutATrailerThereIsNone) {
    deft_nccl_unique_id_t id{};
    std::memset(id.internal, 0x11, 40);
    std::string why;
    EXPECT_FALSE(has_trailer(id, &why));
    EXPECT_NE(why.find("without deft"), std::string::npos) << why;
    EXPECT_FALSE(join(id, 2, 0, terms()));
}

TEST(Council, DoesNotTouchAnIdWhoseBytesAreUsed) {
    deft_nccl_unique_id_t id{};
    id.internal[127] = 1;
    const deft_nccl_unique_id_t before = id;
    std::string why;
    EXPECT_FALSE(write_trailer(id, why));
    EXPECT_FALSE(why.empty());
    EXPECT_EQ(std::memcmp(&id, &before, sizeof(id)), 0);
}

TEST(Council, TrailerLeavesNcclsHalfAlone) {
    const deft_nccl_unique_id_t id = make_id();
    for (int i = 0; i < 64; ++i) {
        EXPECT_EQ(id.internal[i], i < 36 ? 0x5a : 0) << i;
    }
    EXPECT_TRUE(has_trailer(id));
    deft_nccl_unique_id_t damaged = id;
    damaged.internal[80] ^= 1;
    std::string why;
    EXPECT_FALSE(has_trailer(damaged, &why));
    EXPECT_NE(why.find("damaged"), std::string::npos);
}

// Every rank reaches that address: NCCL needs it too.
TEST(Council, TheTrailerBeginsWithTheAddressOfNcclsBootstrap) {
    for (const char* const text : {"127.0.0.7", "127.0.0.1", "::1"}) {
        deft_nccl_unique_id_t id{};
        Address address;
        ASSERT_TRUE(parse_address(text, address));
        sockaddr_storage storage;
        const socklen_t length = to_sockaddr(address, 4711, storage);
        std::memset(id.internal, 0x5a, 8);
        std::memcpy(id.internal + 8, &storage, length);
        std::string why;
        ASSERT_TRUE(write_trailer(id, why)) << why;
        const wire::Trailer trailer = trailer_of(id);
        EXPECT_TRUE(trailer.endpoints[0].address == address) << text;
        EXPECT_NE(trailer.endpoints[0].port, 4711);
        for (std::size_t i = 1; i < trailer.count; ++i) {
            EXPECT_FALSE(trailer.endpoints[i].address == address) << text;
        }
    }
    Scene scene(3);
    scene.join_all();
    EXPECT_TRUE(scene.all(Verdict::On));
}

// One that is not this host's: there the others cannot meet.
TEST(Council, ABootstrapElsewhereIsPassedOver) {
    deft_nccl_unique_id_t id{};
    Address address;
    ASSERT_TRUE(parse_address("192.0.2.1", address));
    sockaddr_storage storage;
    const socklen_t length = to_sockaddr(address, 4711, storage);
    std::memcpy(id.internal + 8, &storage, length);
    std::string why;
    ASSERT_TRUE(write_trailer(id, why)) << why;
    EXPECT_FALSE(trailer_of(id).endpoints[0].address == address);
}

TEST(Council, ProposalIsCommittedEverywhere) {
    Scene scene(4);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    EXPECT_FALSE(scene[1].propose(proposal(1)));  // not the leader
    ASSERT_TRUE(scene[0].propose(proposal(7, 1234, "the plan")));
    for (int rank = 0; rank < 4; ++rank) {
        ASSERT_TRUE(eventually([&] { return scene.member(rank).decisions().count(7) == 1; }));
        EXPECT_TRUE(scene.member(rank).decisions()[7]);
        ASSERT_EQ(scene.member(rank).asked().size(), 1u);
        EXPECT_EQ(scene.member(rank).asked()[0].switch_call, 1234u);
        EXPECT_EQ(text(scene.member(rank).asked()[0].body), "the plan");
        EXPECT_EQ(scene[rank].wait_decision(7, Clock::now() + kPatience), Decision::Commit);
    }
    EXPECT_FALSE(scene[0].propose(proposal(7)));  // serials grow
    EXPECT_TRUE(eventually([&] { return scene[0].propose(proposal(8)); }));
    EXPECT_TRUE(eventually([&] { return scene.member(3).decisions().count(8) == 1; }));
}

TEST(Council, LargeBodiesPass) {
    Scene scene(3);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    const std::string body(kMaxBody, 'x');
    ASSERT_TRUE(scene[0].propose(proposal(1, 1, body)));
    ASSERT_TRUE(eventually([&] { return scene.member(2).decisions().count(1) == 1; }));
    EXPECT_EQ(scene.member(2).asked()[0].body.size(), kMaxBody);
    EXPECT_FALSE(scene[0].propose(proposal(2, 1, body + "y")));
}

TEST(Council, OneNoCancelsForAll) {
    Scene scene(3);
    scene.member(2).answer_with({Answer::No, Answer::Yes});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    for (int rank = 0; rank < 3; ++rank) {
        ASSERT_TRUE(eventually([&] { return scene.member(rank).decisions().count(1) == 1; }));
        EXPECT_FALSE(scene.member(rank).decisions()[1]);
        EXPECT_EQ(scene[rank].wait_decision(1, Clock::now() + kPatience), Decision::Cancel);
    }
    ASSERT_TRUE(eventually([&] { return scene[0].propose(proposal(2)); }));
    ASSERT_TRUE(eventually([&] { return scene.member(2).decisions().count(2) == 1; }));
    EXPECT_TRUE(scene.member(2).decisions()[2]);
}

TEST(Council, TheLeadersOwnNoCancels) {
    Scene scene(2);
    scene.member(0).answer_with({Answer::No});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    ASSERT_TRUE(eventually([&] { return scene.member(1).decisions().count(1) == 1; }));
    EXPECT_FALSE(scene.member(1).decisions()[1]);
}

TEST(Council, AnswersMayComeLater) {
    Scene scene(3);
    scene.member(0).answer_with({Answer::Later});
    scene.member(1).answer_with({Answer::Later});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    EXPECT_FALSE(scene[0].propose(proposal(2)));  // one at a time
    ASSERT_TRUE(eventually([&] { return scene.member(1).asked().size() == 1; }));
    std::thread waiting([&] {
        EXPECT_EQ(scene[1].wait_decision(1, Clock::now() + kPatience), Decision::Commit);
        EXPECT_TRUE(scene.member(1).decisions().at(1));  // decided() comes first
    });
    scene[1].answer(1, true);
    std::this_thread::sleep_for(50ms);
    EXPECT_TRUE(scene.member(2).decisions().empty());
    scene[0].answer(1, true);
    waiting.join();
    EXPECT_TRUE(eventually([&] { return scene.member(2).decisions().count(1) == 1; }));
}

TEST(Council, NobodyWaitsForEverForASilentMember) {
    Scene scene(3);
    scene.member(2).answer_with({Answer::Later});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    Proposal impatient = proposal(1);
    impatient.patience = 100ms;
    ASSERT_TRUE(scene[0].propose(impatient));
    ASSERT_TRUE(eventually([&] { return scene.member(1).decisions().count(1) == 1; }));
    EXPECT_FALSE(scene.member(1).decisions()[1]);
    scene[2].answer(1, true);  // too late; nothing comes of it
    ASSERT_TRUE(eventually([&] { return scene[0].propose(proposal(2)); }));
    EXPECT_TRUE(eventually([&] { return scene.member(1).decisions().count(2) == 1; }));
    EXPECT_TRUE(scene.member(1).decisions()[2]);
}

TEST(Council, WithoutAMemberTheAnswerIsNo) {
    Scene scene(2);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    scene[1].detach(&scene.member(1));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    ASSERT_TRUE(eventually([&] { return scene.member(0).decisions().count(1) == 1; }));
    EXPECT_FALSE(scene.member(0).decisions()[1]);
    EXPECT_TRUE(scene.member(1).asked().empty());
}

TEST(Council, ReportsReachTheLeaderInOrder) {
    Scene scene(3);
    scene.join_all();
    EXPECT_TRUE(scene.all(Verdict::On));
    scene[0].detach(&scene.member(0));
    for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(scene[1].report(bytes("one " + std::to_string(i))));
        EXPECT_TRUE(scene[2].report(bytes("two " + std::to_string(i))));
        EXPECT_TRUE(scene[0].report(bytes("own " + std::to_string(i))));
    }
    scene[0].attach(&scene.member(0));  // reports wait for somebody to hear them
    ASSERT_TRUE(eventually([&] { return scene.member(0).heard().size() == 60; }));
    std::map<int, int> next;
    for (const auto& [rank, report] : scene.member(0).heard()) {
        const std::string who = rank == 0 ? "own " : rank == 1 ? "one " : "two ";
        EXPECT_EQ(report, who + std::to_string(next[rank]++));
    }
    EXPECT_TRUE(scene.member(1).heard().empty());
}

TEST(Council, AMemberAttachedLateIsToldTheVerdict) {
    Scene scene(2);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    Recorder late;
    scene[1].detach(&scene.member(1));
    scene[1].attach(&late);
    EXPECT_TRUE(eventually([&] { return late.verdicts() == std::vector<Verdict>{Verdict::On}; }));
    scene[1].detach(&late);
}

TEST(Council, AMemberThatLeavesClosesTheCouncil) {
    Scene scene(3);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    scene.leave(1);
    ASSERT_TRUE(eventually([&] { return scene.member(0).closings().size() == 1; }));
    ASSERT_TRUE(eventually([&] { return scene.member(2).closings().size() == 1; }));
    EXPECT_NE(scene[0].reason().find("rank 1"), std::string::npos) << scene[0].reason();
    EXPECT_FALSE(scene[0].open());
    EXPECT_FALSE(scene[0].propose(proposal(1)));
    EXPECT_FALSE(scene[2].report(bytes("x")));
    EXPECT_EQ(scene[0].verdict(), Verdict::On);  // what is in force stays in force
}

TEST(Council, TheLeaderThatLeavesClosesTheCouncil) {
    Scene scene(3);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    scene.leave(0);
    EXPECT_TRUE(eventually([&] { return scene.member(1).closings().size() == 1; }));
    EXPECT_TRUE(eventually([&] { return scene.member(2).closings().size() == 1; }));
}

TEST(Council, TheLeaderThatLeavesBeforeTheVerdictTurnsAllOff) {
    Scene scene(3);
    scene.join(0);
    scene.join(1);
    scene.leave(0);
    EXPECT_TRUE(scene.all(Verdict::Off));
    scene.join(2);
    EXPECT_TRUE(scene.all(Verdict::Off));
}

TEST(Council, AMemberThatLeavesDuringAVoteCancelsIt) {
    Scene scene(3);
    scene.member(2).answer_with({Answer::Later});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    ASSERT_TRUE(eventually([&] { return scene.member(2).asked().size() == 1; }));
    scene.leave(2);
    for (int rank = 0; rank < 2; ++rank) {
        ASSERT_TRUE(eventually([&] { return scene.member(rank).decisions().count(1) == 1; }));
        EXPECT_FALSE(scene.member(rank).decisions()[1]);
        ASSERT_TRUE(eventually([&] { return scene.member(rank).closings().size() == 1; }));
    }
}

TEST(Council, AYesWithoutADecisionIsLost) {
    Scene scene(3);
    scene.member(0).answer_with({Answer::Later});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    ASSERT_TRUE(eventually([&] { return scene.member(1).asked().size() == 1; }));
    // The deadline passes on rank 1: it is out. It had said yes, so the others may switch or not;
    // its communicator fails either way, and it must not hear of it any more.
    EXPECT_EQ(scene[1].wait_decision(1, Clock::now() + 50ms), Decision::Lost);
    scene[0].answer(1, true);
    ASSERT_TRUE(eventually([&] { return scene.member(2).decisions().count(1) == 1; }));
    ASSERT_TRUE(eventually([&] { return scene.member(0).decisions().count(1) == 1; }));
    EXPECT_EQ(scene.member(0).decisions()[1], scene.member(2).decisions()[1]);
    EXPECT_TRUE(eventually([&] { return !scene[0].open() && !scene[1].open(); }));
    EXPECT_TRUE(scene.member(1).decisions().empty());
    EXPECT_EQ(scene[1].wait_decision(1, Clock::now() + kPatience), Decision::Lost);
}

TEST(Council, TheLeaderThatGivesUpTakesNobodyAlong) {
    Scene scene(2);
    scene.member(1).answer_with({Answer::Later});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    ASSERT_TRUE(eventually([&] { return scene.member(1).asked().size() == 1; }));
    EXPECT_EQ(scene[0].wait_decision(1, Clock::now() + 50ms), Decision::Lost);
    scene[1].answer(1, true);
    EXPECT_TRUE(eventually([&] { return !scene[1].open(); }));
    for (const auto& [serial, commit] : scene.member(1).decisions()) {
        EXPECT_FALSE(commit) << serial;
    }
    EXPECT_TRUE(scene.member(0).decisions().empty());
}

// The job stands still then: a rank that is slow to answer costs it the plan, not the patience.
TEST(Council, TheLeadersOwnCallDoesNotWaitForAnAnswerThatDoesNotCome) {
    Scene scene(3);
    scene.member(2).answer_with({Answer::Later, Answer::Later});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    for (const std::uint64_t serial : {1, 2}) {
        Proposal patient = proposal(serial);
        patient.patience = 1h;
        ASSERT_TRUE(eventually([&] { return scene[0].propose(patient); }));
        ASSERT_TRUE(eventually([&] { return scene.member(2).asked().size() == serial; }));
        std::thread member([&] {
            EXPECT_EQ(scene[1].wait_decision(serial, Clock::now() + kPatience), Decision::Cancel);
        });
        EXPECT_EQ(scene[0].wait_decision(serial, Clock::now() + kPatience), Decision::Cancel);
        member.join();
        scene[2].answer(serial, true);  // too late
        EXPECT_EQ(scene[2].wait_decision(serial, Clock::now() + kPatience), Decision::Cancel);
        EXPECT_TRUE(scene[0].open());
    }
}

// That it has waited once is no reason to cancel what comes next.
TEST(Council, TheNextVoteHasItsOwnPatience) {
    Scene scene(2);
    scene.member(1).answer_with({Answer::Later, Answer::Later});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    ASSERT_TRUE(eventually([&] { return scene.member(1).asked().size() == 1; }));
    EXPECT_EQ(scene[0].wait_decision(1, Clock::now() + kPatience), Decision::Cancel);
    ASSERT_TRUE(eventually([&] { return scene[0].propose(proposal(2)); }));
    ASSERT_TRUE(eventually([&] { return scene.member(1).asked().size() == 2; }));
    std::this_thread::sleep_for(700ms);
    EXPECT_EQ(scene.member(0).decisions().count(2), 0U);
    scene[1].answer(2, true);
    ASSERT_TRUE(eventually([&] { return scene.member(0).decisions().count(2) == 1; }));
    EXPECT_TRUE(scene.member(0).decisions()[2]);
}

// Between a decision and the thread that waits for it the next proposal may come.
TEST(Council, ADecisionIsFoundThoughTheNextVoteHasBegun) {
    Scene scene(3);
    scene.member(2).answer_with({Answer::No, Answer::Yes, Answer::Later});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    for (const std::uint64_t serial : {1, 2, 3}) {
        ASSERT_TRUE(eventually([&] { return scene[0].propose(proposal(serial)); }));
        for (int rank = 0; rank < 3; ++rank) {
            ASSERT_TRUE(eventually([&] { return scene.member(rank).asked().size() == serial; }));
        }
    }
    for (int rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(scene[rank].wait_decision(1, Clock::now() + kPatience), Decision::Cancel) << rank;
        EXPECT_EQ(scene[rank].wait_decision(2, Clock::now() + kPatience), Decision::Commit) << rank;
    }
    scene[2].answer(3, true);
    EXPECT_EQ(scene[1].wait_decision(3, Clock::now() + kPatience), Decision::Commit);
}

TEST(Council, LeavingWakesWhoeverWaits) {
    Scene scene(2);
    scene.member(0).answer_with({Answer::Later});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    ASSERT_TRUE(eventually([&] { return scene.member(1).asked().size() == 1; }));
    std::thread waiting(
        [&] { EXPECT_EQ(scene[1].wait_decision(1, Clock::now() + kPatience), Decision::Lost); });
    scene[1].leave();  // another thread aborts
    waiting.join();
}

TEST(Council, WhoeverWaitsCanBeLetGoWithoutLeaving) {
    Scene scene(2);
    scene.member(0).answer_with({Answer::Later});
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(1)));
    ASSERT_TRUE(eventually([&] { return scene.member(1).asked().size() == 1; }));
    std::thread waiting(
        [&] { EXPECT_EQ(scene[1].wait_decision(1, Clock::now() + kPatience), Decision::Lost); });
    scene[1].let_go();
    waiting.join();
    EXPECT_TRUE(scene[1].open());
    scene[0].answer(1, true);
    ASSERT_TRUE(eventually([&] { return scene.member(1).decisions().count(1) == 1; }));
    EXPECT_TRUE(scene.member(1).decisions()[1]);
}

TEST(Council, WaitDecisionWithoutAProposalIsLostAtOnce) {
    Scene scene(2);
    scene.join_all();
    ASSERT_TRUE(scene.all(Verdict::On));
    EXPECT_EQ(scene[1].wait_decision(3, Clock::now() + kPatience), Decision::Lost);
}

}  // namespace
}  // namespace deft::agreement::test
