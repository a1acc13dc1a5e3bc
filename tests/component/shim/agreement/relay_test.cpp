// SPDX-License-Identifier: Apache-2.0
// Ranks of a host share a connection to their leader: one of its processes relays for the others.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/component/shim/agreement/rank_process.h"
#include "tests/component/shim/agreement/raw_peer.h"
#include "topology/listening.h"

namespace deft::agreement::test {
namespace {

// A leader and processes of one host, which hold ranks of several communicators.
class Relay : public ::testing::Test {
protected:
    static constexpr int kMembers = 3;

    // The leader's first rank, then those of the processes that are named.
    void make(const std::string& council, const std::vector<int>& who,
              const std::string& more = "") {
        const std::string id = leader.ask("make");
        const std::string head =
            "join " + council + " " + id + " " + std::to_string(who.size() + 1) + " ";
        EXPECT_EQ(leader.ask(head + "0 " + more), "ok");
        int rank = 0;
        for (const int member : who) {
            EXPECT_EQ(members[member].ask(head + std::to_string(++rank) + " " + more), "ok");
        }
    }
    void expect_on(const std::string& council, const std::vector<int>& who) {
        EXPECT_EQ(leader.ask("on " + council), "ok");
        for (const int member : who) {
            EXPECT_EQ(members[member].ask("on " + council), "ok");
        }
    }
    void expect_vote(const std::string& council, int serial, const std::vector<int>& who) {
        const std::string number = " " + std::to_string(serial);
        EXPECT_EQ(leader.ask("propose " + council + number), "ok");
        EXPECT_EQ(leader.ask("decision " + council + number), "commit");
        for (const int member : who) {
            EXPECT_EQ(members[member].ask("decision " + council + number), "commit");
        }
    }
    // The process that has the connection; the others of `who` have none.
    int relay(const std::vector<int>& who = {0, 1, 2}) {
        int found = -1;
        for (const int member : who) {
            const std::string count = members[member].ask("tcp");
            if (count != "0") {
                EXPECT_EQ(count, "1");
                EXPECT_EQ(found, -1) << "two have one";
                found = member;
            }
        }
        EXPECT_NE(found, -1);
        return std::max(found, 0);
    }
    static std::vector<int> others(int one) {
        std::vector<int> rest;
        for (int member = 0; member < kMembers; ++member) {
            if (member != one) {
                rest.push_back(member);
            }
        }
        return rest;
    }

    RankChild leader;
    RankChild members[kMembers];
};

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

// ---- a tree of hosts
// -----------------------------------------------------------------------------

class Tree : public Relay {
protected:
    // Each process is a host, and the leader keeps one of them.
    Tree() {
        EXPECT_EQ(leader.ask("direct 1"), "ok");
        for (int member = 0; member < kMembers; ++member) {
            EXPECT_EQ(members[member].ask("set NCCL_HOSTID host" + std::to_string(member)), "ok");
        }
    }
    bool grown() {
        return eventually([&] { return leader.ask("tcp") == "1"; });
    }
    // The host that the others are behind.
    int root(const std::vector<int>& who) {
        int most = 0;
        int found = who[0];
        for (const int member : who) {
            const int count = std::stoi(members[member].ask("tcp"));
            if (count > most) {
                most = count;
                found = member;
            }
        }
        EXPECT_EQ(most, static_cast<int>(who.size()));
        return found;
    }
};

TEST_F(Tree, HostsBeyondThoseThatTheLeaderKeepsAreBehindOthers) {
    make("a", {0, 1, 2});
    expect_on("a", {0, 1, 2});
    ASSERT_TRUE(grown());
    (void)root({0, 1, 2});
    expect_vote("a", 1, {0, 1, 2});
    for (int member = 0; member < kMembers; ++member) {
        EXPECT_EQ(members[member].ask("report a word"), "ok");
    }
    EXPECT_NE(leader.ask("heard a 3"), "never");
    make("b", {2, 0});
    expect_on("b", {2, 0});
    expect_vote("b", 1, {2, 0});
    EXPECT_EQ(leader.ask("open a"), "open");
    EXPECT_EQ(leader.ask("tcp"), "1");
}

TEST_F(Tree, AKilledHostCostsThoseBehindItNothing) {
    make("all", {0, 1, 2});
    expect_on("all", {0, 1, 2});
    ASSERT_TRUE(grown());
    const int dead = root({0, 1, 2});
    const std::vector<int> alive = others(dead);
    make("alive", alive);
    expect_on("alive", alive);
    members[dead].die();
    EXPECT_EQ(leader.ask("closed all"), "ok");
    expect_vote("alive", 1, alive);
    EXPECT_EQ(leader.ask("open alive"), "open");
    ASSERT_TRUE(grown());
    expect_vote("alive", 2, alive);
}

TEST_F(Tree, AHostThatIsKilledBehindAnotherIsNoticed) {
    EXPECT_EQ(leader.ask("pace 5000 300"), "ok");
    make("all", {0, 1, 2});
    expect_on("all", {0, 1, 2});
    ASSERT_TRUE(grown());
    const int top = root({0, 1, 2});
    const std::vector<int> behind = others(top);
    members[behind[0]].die();
    EXPECT_EQ(leader.ask("closed all"), "ok");
    EXPECT_EQ(members[behind[1]].ask("closed all"), "ok");
}

// ---- what the leader's process takes from the job -----------------------------------------------

std::vector<UniqueFd> crowd(const std::string& id, int size) {
    std::vector<UniqueFd> guests;
    for (int i = 0; i < size; ++i) {
        guests.push_back(call(trailer_of(from_hex(id))));
    }
    return guests;
}

TEST_F(Relay, TheLeaderRaisesItsOwnLimitOfDescriptors) {
    EXPECT_EQ(leader.ask("limit 40 200"), "ok");
    EXPECT_EQ(members[0].ask("limit 40 200"), "ok");
    make("a", {0});
    expect_on("a", {0});
    EXPECT_EQ(leader.ask("files"), "40");
    const std::vector<UniqueFd> guests = crowd(leader.ask("make"), 60);
    // As far as needed: what the job starts inherits it.
    EXPECT_TRUE(eventually([&] { return leader.ask("files") == "160"; }));
    EXPECT_EQ(members[0].ask("files"), "40");
}

TEST_F(Relay, TheLeaderLeavesDescriptorsToTheJob) {
    EXPECT_EQ(leader.ask("limit 40 40"), "ok");
    make("a", {0});
    expect_on("a", {0});
    {
        const std::vector<UniqueFd> guests = crowd(leader.ask("make"), 60);
        EXPECT_TRUE(eventually([&] { return std::stoi(leader.ask("tcp")) > 10; }));
        std::this_thread::sleep_for(300ms);  // it would take more now
        EXPECT_GE(std::stoi(leader.ask("spare")), 9);
    }
    make("b", {0, 1});  // who waited comes in when there is room again
    expect_on("b", {0, 1});
}

// ---- where it listens
// ----------------------------------------------------------------------------

TEST_F(Relay, ListensInTheRangeOnly) {
    std::uint16_t port = 0;
    std::string why;
    Address address;
    ASSERT_TRUE(parse_address("127.0.0.1", address));
    const auto make_socket = [] {
        return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    };
    ASSERT_TRUE(listen_in({}, make_socket, address, 1, port, why)) << why;
    const std::string range = std::to_string(port) + "-" + std::to_string(port);
    EXPECT_EQ(leader.ask("set DEFT_INTERFACES 127.0.0.1"), "ok");
    EXPECT_EQ(members[0].ask("set DEFT_INTERFACES 127.0.0.1"), "ok");
    EXPECT_EQ(leader.ask("set DEFT_PORTS " + range), "ok");
    EXPECT_EQ(members[0].ask("set DEFT_PORTS " + range), "ok");
    make("a", {0, 1});
    expect_on("a", {0, 1});
    EXPECT_EQ(trailer_of(from_hex(leader.ask("make"))).endpoints[0].port, port);
    // The only one is taken.
    EXPECT_EQ(members[0].ask("make"),
              "none: all ports of DEFT_PORTS=" + range + " are in use on 127.0.0.1");
}

// Run by link_local.sh, which makes the links.
TEST_F(Relay, MeetsAtALinkLocalAddress) {
    if (std::getenv("TEST_LINK_LOCAL") == nullptr) {
        GTEST_SKIP() << "needs links of its own";
    }
    EXPECT_EQ(leader.ask("set DEFT_INTERFACES right"), "ok");
    EXPECT_EQ(members[0].ask("set DEFT_INTERFACES wrong,right"), "ok");
    const wire::Trailer trailer = trailer_of(from_hex(leader.ask("make")));
    EXPECT_EQ(trailer.endpoints[0].address.text(), "fe80::2");
    make("a", {0});
    expect_on("a", {0});
    expect_vote("a", 1, {0});
}

// ---- a shared secret
// -----------------------------------------------------------------------------

class Secret : public Relay {
protected:
    Secret() {
        char pattern[] = "/tmp/deft-secret-XXXXXX";
        folder = ::mkdtemp(pattern);
        write("right", "correct horse battery staple\n", 0600);
        write("wrong", "correct horse battery stable\n", 0600);
        write("short", "pst\n", 0600);
        write("open", "correct horse battery staple\n", 0644);
    }
    ~Secret() override { std::filesystem::remove_all(folder); }
    void write(const std::string& name, const std::string& text, int mode) {
        std::ofstream(folder + "/" + name) << text;
        EXPECT_EQ(::chmod((folder + "/" + name).c_str(), static_cast<mode_t>(mode)), 0);
    }
    void give(RankChild& who, const std::string& name) {
        EXPECT_EQ(who.ask("set DEFT_SECRET_FILE " + folder + "/" + name), "ok");
    }
    // Ranks 0 to 2: the leader, and two members with these secrets.
    std::string outcome(const std::string& first, const std::string& second) {
        give(leader, "right");
        const std::string id = leader.ask("make");
        const std::string head = "join a " + id + " 3 ";
        EXPECT_EQ(leader.ask(head + "0 2000"), "ok");
        int rank = 0;
        for (const std::string& name : {first, second}) {
            if (!name.empty()) {
                give(members[rank], name);
            }
            EXPECT_EQ(members[rank].ask(head + std::to_string(rank + 1) + " 2000"), "ok");
            ++rank;
        }
        return leader.ask("off a");
    }
    std::string folder;
};

TEST_F(Secret, SharedByAllIsNoHindrance) {
    for (RankChild* const who : {&leader, &members[0], &members[1], &members[2]}) {
        give(*who, "right");
    }
    make("a", {0, 1, 2});
    expect_on("a", {0, 1, 2});
    (void)relay();
    expect_vote("a", 1, {0, 1, 2});
    EXPECT_EQ(members[2].ask("report a word"), "ok");
    EXPECT_EQ(leader.ask("heard a 1"), "3:word ");
}

TEST_F(Secret, AWrongOneKeepsTheRankOut) {
    const std::string reason = outcome("right", "wrong");
    EXPECT_NE(reason.find("rank 2 did not answer"), reason.npos) << reason;
    EXPECT_NE(reason.find("another shared secret"), reason.npos) << reason;
    EXPECT_EQ(members[0].ask("off a"), reason);
    EXPECT_NE(members[1].ask("off a"), "never");
}

TEST_F(Secret, NoneKeepsTheRankOut) {
    const std::string reason = outcome("right", "");
    EXPECT_NE(reason.find("rank 2 did not answer"), reason.npos) << reason;
    EXPECT_NE(reason.find("another shared secret"), reason.npos) << reason;
}

// Who has read the unique id knows the nonce, but not the secret.
TEST_F(Secret, TheUniqueIdAloneIsNotEnough) {
    give(leader, "right");
    give(members[0], "right");
    const std::string id = leader.ask("make");
    const std::string head = "join a " + id + " 2 ";
    EXPECT_EQ(leader.ask(head + "0"), "ok");
    const wire::Trailer trailer = trailer_of(from_hex(id));
    const UniqueFd stranger = call(trailer);
    say(stranger, frame(trailer, 1, wire::Type::Hello, wire::encode(hello_for(trailer, 1, 2))));
    char answer = 0;
    EXPECT_LE(::recv(stranger.get(), &answer, 1, 0), 0);
    EXPECT_EQ(members[0].ask(head + "1"), "ok");
    expect_on("a", {0});
}

TEST_F(Secret, OneThatCannotBeUsedIsNamed) {
    give(leader, "short");
    give(members[0], "open");
    give(members[1], "missing");
    EXPECT_NE(leader.ask("make").find("short': it holds 3 bytes"), std::string::npos);
    EXPECT_NE(members[0].ask("make").find("every user of the host may read"), std::string::npos);
    EXPECT_NE(members[1].ask("make").find("missing': No such file"), std::string::npos);
}

}  // namespace
}  // namespace deft::agreement::test
