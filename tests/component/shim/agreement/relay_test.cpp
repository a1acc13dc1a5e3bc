// SPDX-License-Identifier: Apache-2.0
// What it costs when one of the processes that share a connection is killed, stopped or late.
#include "tests/component/shim/agreement/relay_scene.h"

namespace deft::agreement::test {
namespace {

TEST_F(Relay, OneConnectionServesAllRanksOfAHostAndAllCommunicators) {
    make("a", {0, 1, 2});
    expect_on("a", {0, 1, 2});
    (void)relay();
    EXPECT_EQ(leader.ask("tcp"), "1");
    make("b", {2, 1});
    expect_on("b", {2, 1});
    make("c", {1});
    expect_on("c", {1});
    (void)relay();
    EXPECT_EQ(leader.ask("tcp"), "1");
    expect_vote("a", 1, {0, 1, 2});
    expect_vote("b", 1, {2, 1});
    for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(members[i % 3].ask("report a " + std::to_string(i)), "ok");
    }
    const std::string heard = leader.ask("heard a 20");
    for (int i = 0; i < 20; ++i) {
        EXPECT_NE(heard.find(std::to_string(i % 3 + 1) + ":" + std::to_string(i) + " "), heard.npos)
            << heard;
    }
}

TEST_F(Relay, OtherHostsHaveTheirOwn) {
    EXPECT_EQ(members[0].ask("set NCCL_HOSTID other"), "ok");
    make("a", {0, 1, 2});
    expect_on("a", {0, 1, 2});
    EXPECT_EQ(members[0].ask("tcp"), "1");
    (void)relay({1, 2});
    EXPECT_EQ(leader.ask("tcp"), "2");
    expect_vote("a", 1, {0, 1, 2});
}

// What the dead process was no part of goes on as if it had never been.
TEST_F(Relay, KilledCostsNobodyElseAnything) {
    make("all", {0, 1, 2});
    expect_on("all", {0, 1, 2});
    const int dead = relay();
    const std::vector<int> alive = others(dead);
    make("alive", alive);
    expect_on("alive", alive);
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(members[alive[0]].ask("report alive " + std::to_string(i)), "ok");
    }
    members[dead].die();
    EXPECT_EQ(leader.ask("closed all"), "ok");
    EXPECT_NE(leader.ask("reason all").find("is gone"), std::string::npos);
    for (const int member : alive) {
        EXPECT_EQ(members[member].ask("closed all"), "ok");
    }
    for (int i = 10; i < 20; ++i) {
        EXPECT_EQ(members[alive[0]].ask("report alive " + std::to_string(i)), "ok");
    }
    expect_vote("alive", 1, alive);
    // Each once, and in order.
    std::string expected;
    for (int i = 0; i < 20; ++i) {
        expected += "1:" + std::to_string(i) + " ";
    }
    EXPECT_EQ(leader.ask("heard alive 20"), expected);
    EXPECT_EQ(leader.ask("open alive"), "open");
    expect_vote("alive", 2, alive);
    (void)relay(alive);  // one of them took its place
    EXPECT_EQ(leader.ask("tcp"), "1");
}

TEST_F(Relay, KilledDuringAVoteLosesNoAnswer) {
    make("all", {0, 1, 2});
    expect_on("all", {0, 1, 2});
    const int dead = relay();
    const std::vector<int> alive = others(dead);
    make("alive", alive);
    expect_on("alive", alive);
    EXPECT_EQ(members[alive[1]].ask("later alive"), "ok");
    EXPECT_EQ(leader.ask("propose alive 7"), "ok");
    EXPECT_EQ(members[alive[1]].ask("asked alive"), "ok");
    members[dead].die();
    EXPECT_EQ(members[alive[1]].ask("answer alive 7"), "ok");  // as it looks for a way
    EXPECT_EQ(leader.ask("decision alive 7"), "commit");
    for (const int member : alive) {
        EXPECT_EQ(members[member].ask("decision alive 7"), "commit");
    }
}

TEST_F(Relay, KilledBeforeTheVerdictIsReplaced) {
    make("all", {0, 1, 2});
    expect_on("all", {0, 1, 2});
    const int dead = relay();
    const std::vector<int> alive = others(dead);
    const std::string id = leader.ask("make");
    const std::string head = "join late " + id + " 3 ";
    EXPECT_EQ(members[alive[0]].ask(head + "1"), "ok");
    EXPECT_EQ(leader.ask(head + "0"), "ok");
    members[dead].die();
    EXPECT_EQ(members[alive[1]].ask(head + "2"), "ok");
    expect_on("late", alive);
    expect_vote("late", 1, alive);
}

// A stopped process is still there, but says nothing: the others find another way.
TEST_F(Relay, StoppedDoesNotStopTheOthers) {
    for (RankChild& member : members) {
        EXPECT_EQ(member.ask("pace 500 10000"), "ok");
    }
    make("all", {0, 1, 2});
    expect_on("all", {0, 1, 2});
    const int stopped = relay();
    const std::vector<int> rest = others(stopped);
    make("rest", rest);
    expect_on("rest", rest);
    members[stopped].stop();
    expect_vote("rest", 1, rest);
    EXPECT_EQ(leader.ask("open all"), "open");
    members[stopped].signal(SIGCONT);
    expect_vote("all", 1, {0, 1, 2});
}

// A host that is frozen (its machine moved, or short of memory) was silent, and is well.
TEST_F(Relay, AFrozenHostLosesNobody) {
    for (RankChild* const who : {&leader, &members[0], &members[1], &members[2]}) {
        EXPECT_EQ(who->ask("pace 1000 1"), "ok");  // who goes another way is lost at once
    }
    make("all", {0, 1, 2});
    expect_on("all", {0, 1, 2});
    for (RankChild& member : members) {
        member.stop();
    }
    std::this_thread::sleep_for(1500ms);  // longer than the silence that ends a connection
    for (RankChild& member : members) {
        member.signal(SIGCONT);
    }
    expect_vote("all", 1, {0, 1, 2});
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(leader.ask("open all"), "open");
    expect_vote("all", 2, {0, 1, 2});
}

// Who has left a silent relay asks the same one again, when it goes on.
TEST_F(Relay, OneThatHasBeenSilentLosesNobody) {
    for (RankChild& member : members) {
        EXPECT_EQ(member.ask("pace 200 10000"), "ok");
    }
    make("all", {0, 1, 2});
    expect_on("all", {0, 1, 2});
    const int stopped = relay();
    members[stopped].stop();
    std::this_thread::sleep_for(600ms);  // they have left it, and wait to be let in again
    members[stopped].signal(SIGCONT);
    expect_vote("all", 1, {0, 1, 2});
    EXPECT_EQ(leader.ask("open all"), "open");
}

TEST_F(Relay, AFrozenLeaderLosesNobody) {
    EXPECT_EQ(leader.ask("pace 1000 1000"), "ok");
    make("all", {0, 1, 2});
    expect_on("all", {0, 1, 2});
    const int dead = relay();
    const std::vector<int> alive = others(dead);
    make("alive", alive);
    expect_on("alive", alive);
    for (const int member : alive) {
        members[member].stop();
    }
    members[dead].die();
    EXPECT_EQ(leader.ask("closed all"), "ok");
    leader.stop();
    for (const int member : alive) {
        members[member].signal(SIGCONT);
    }
    std::this_thread::sleep_for(1500ms);  // longer than a rank has to come back
    leader.signal(SIGCONT);
    expect_vote("alive", 1, alive);
    EXPECT_EQ(leader.ask("open alive"), "open");
}

// ---- the network blinks
class Blink : public Relay {
protected:
    // Each process is a host. One of them has yet to answer to the proposal.
    void ask_all() {
        for (int member = 0; member < kMembers; ++member) {
            EXPECT_EQ(members[member].ask("set NCCL_HOSTID host" + std::to_string(member)), "ok");
        }
        make("a", {0, 1, 2});
        expect_on("a", {0, 1, 2});
        EXPECT_EQ(members[2].ask("later a"), "ok");
        EXPECT_EQ(leader.ask("propose a 7"), "ok");
        for (RankChild& member : members) {
            EXPECT_EQ(member.ask("asked a"), "ok");
        }
    }
};

TEST_F(Blink, CostsNoDecision) {
    ask_all();
    members[0].stop();
    EXPECT_EQ(leader.ask("break"), "ok");
    EXPECT_EQ(members[2].ask("answer a 7"), "ok");
    EXPECT_EQ(leader.ask("decision a 7"), "commit");
    members[0].signal(SIGCONT);
    EXPECT_EQ(members[0].ask("decision a 7"), "commit");
    EXPECT_EQ(members[0].ask("wait a 7"), "commit");
    EXPECT_EQ(leader.ask("open a"), "open");
    expect_vote("a", 8, {0, 1, 2});
}

// Nothing more is agreed on, but what was is not lost.
TEST_F(Blink, ThatLastsEndsTheAgreementAndLosesNoDecision) {
    EXPECT_EQ(members[0].ask("pace 1000 0"), "ok");  // is gone at once
    ask_all();
    EXPECT_EQ(members[0].ask("break"), "ok");
    EXPECT_EQ(members[0].ask("closed a"), "ok");
    EXPECT_EQ(members[2].ask("answer a 7"), "ok");
    EXPECT_EQ(members[0].ask("wait a 7"), "commit");
    EXPECT_EQ(members[2].ask("decision a 7"), "commit");
    EXPECT_EQ(leader.ask("decision a 7"), "commit");
    EXPECT_EQ(leader.ask("closed a"), "ok");
}

// Who has not said yes knows that nobody switches.
TEST_F(Blink, BeforeTheAnswerIsANo) {
    EXPECT_EQ(leader.ask("pace 1000 100"), "ok");
    EXPECT_EQ(members[2].ask("pace 1000 0"), "ok");
    ask_all();
    EXPECT_EQ(members[2].ask("break"), "ok");
    EXPECT_EQ(members[2].ask("wait a 7"), "cancel");
    for (RankChild* const who : {&leader, &members[0], &members[1]}) {
        EXPECT_EQ(who->ask("decision a 7"), "cancel");
    }
}

TEST_F(Blink, DoesNotHideThatTheLeaderIsGone) {
    for (RankChild& member : members) {
        EXPECT_EQ(member.ask("pace 5000 300"), "ok");
    }
    ask_all();
    leader.die();
    EXPECT_EQ(members[0].ask("wait a 7"), "lost");
    EXPECT_EQ(members[2].ask("wait a 7"), "cancel");
}

// ---- who is gone

TEST_F(Relay, AMemberThatIsKilledBehindItIsNoticed) {
    EXPECT_EQ(leader.ask("pace 5000 300"), "ok");
    make("all", {0, 1, 2});
    expect_on("all", {0, 1, 2});
    const std::vector<int> behind = others(relay());
    make("pair", {relay(), behind[0]});
    expect_on("pair", {relay(), behind[0]});
    members[behind[1]].die();
    EXPECT_EQ(leader.ask("closed all"), "ok");
    EXPECT_EQ(members[behind[0]].ask("closed all"), "ok");
    expect_vote("pair", 1, {behind[0]});
}

TEST_F(Relay, AKilledLeaderIsNoticedByAll) {
    for (RankChild& member : members) {
        EXPECT_EQ(member.ask("pace 5000 300"), "ok");
    }
    make("all", {0, 1, 2});
    make("two", {0, 1});
    expect_on("all", {0, 1, 2});
    expect_on("two", {0, 1});
    leader.die();
    for (int member = 0; member < kMembers; ++member) {
        EXPECT_EQ(members[member].ask("closed all"), "ok");
        EXPECT_NE(members[member].ask("reason all").find("is gone"), std::string::npos);
    }
    EXPECT_EQ(members[1].ask("closed two"), "ok");
}

TEST_F(Relay, AHostOfWhichOneRankLacksDeftIsOff) {
    const std::string id = leader.ask("make");
    const std::string head = "join a " + id + " 4 ";
    EXPECT_EQ(leader.ask(head + "0 300"), "ok");
    EXPECT_EQ(members[0].ask(head + "1 300"), "ok");
    EXPECT_EQ(members[2].ask(head + "3 300"), "ok");  // rank 2 has none
    const std::string reason = leader.ask("off a");
    EXPECT_NE(reason.find("rank 2 did not answer"), reason.npos) << reason;
    EXPECT_EQ(members[0].ask("off a"), reason);
    EXPECT_EQ(members[2].ask("off a"), reason);
}

// Off is not for ever where a rank was only slow.
TEST_F(Relay, ARankThatComesLateIsWaitedFor) {
    const std::string id = leader.ask("make");
    const std::string head = "join a " + id + " 3 ";
    EXPECT_EQ(leader.ask(head + "0 200 60000 60000"), "ok");
    EXPECT_EQ(members[0].ask(head + "1 200 60000 60000"), "ok");
    EXPECT_NE(leader.ask("off a").find("rank 2 did not answer"), std::string::npos);
    EXPECT_NE(members[0].ask("off a").find("rank 2 did not answer"), std::string::npos);
    EXPECT_EQ(members[1].ask(head + "2 200 60000 60000"), "ok");
    expect_on("a", {0, 1});
    expect_vote("a", 1, {0, 1});
}

TEST_F(Relay, ARankThatNeverComesIsGivenUp) {
    const std::string id = leader.ask("make");
    const std::string head = "join a " + id + " 3 ";
    EXPECT_EQ(leader.ask(head + "0 100 100 100"), "ok");
    EXPECT_EQ(members[0].ask(head + "1 100 100 100"), "ok");
    EXPECT_NE(leader.ask("off a").find("rank 2 did not answer"), std::string::npos);
    EXPECT_TRUE(eventually(
        [&] { return leader.ask("reason a").find("asked again 2 times") != std::string::npos; }));
    EXPECT_TRUE(eventually([&] {
        return members[0].ask("reason a").find("asked again 2 times") != std::string::npos;
    }));
    EXPECT_EQ(members[1].ask(head + "2 100"), "ok");
    EXPECT_NE(members[1].ask("off a"), "never");
}

}  // namespace
}  // namespace deft::agreement::test
