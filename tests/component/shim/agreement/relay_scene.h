// SPDX-License-Identifier: Apache-2.0
// Ranks of a host share a connection to their leader: one of its processes relays for the others.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/component/shim/agreement/rank_process.h"

namespace deft::agreement::test {

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

}  // namespace deft::agreement::test
