// SPDX-License-Identifier: Apache-2.0
// Hosts behind other hosts, and what the leader takes of descriptors and ports.
#include <sys/socket.h>

#include <cstdlib>

#include "tests/component/shim/agreement/raw_peer.h"
#include "tests/component/shim/agreement/relay_scene.h"
#include "topology/listening.h"

namespace deft::agreement::test {
namespace {

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

}  // namespace
}  // namespace deft::agreement::test
