// SPDX-License-Identifier: Apache-2.0
// What deft probe reads of others, and what it makes of figures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/probe/host_list.h"
#include "tools/probe/probe_result.h"
#include "tools/probe/remote.h"

namespace deft::tools::probe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

HostPair two_links() {
    HostPair hosts{"a", "b", "", "1", "1", {{"eth0", 1500, 10000}, {"eth1", 9000, 0}}, {}, {}};
    hosts.to_links = hosts.from_links;
    const doctor::Flow flow{1.25e9, 0, 1500};
    for (const char* from : {"eth0", "eth1"}) {
        for (const char* to : {"eth0", "eth1"}) {
            const bool same = from[3] == to[3];
            hosts.links.push_back({from, to, "10.0.0.1", "10.0.0.2", same,
                                   same ? "" : "Network is unreachable",
                                   same ? std::optional(50e-6) : std::nullopt,
                                   same ? std::optional(60e-6) : std::nullopt,
                                   same ? std::optional(flow) : std::nullopt,
                                   same ? std::optional(flow) : std::nullopt});
        }
    }
    return hosts;
}

TEST(Hosts, OfAFileAsMpirunReadsIt) {
    EXPECT_THAT(hosts_in("# ours\nn1 slots=8\nn2:4\n\n  n3 # the third\nn1\nfd00::2\n"),
                ElementsAre("n1", "n2", "n3", "fd00::2"));
}

TEST(Hosts, ANameIsNoOptionAndNoCommand) {
    for (const char* bad : {"", "-oProxyCommand=x", "a b", "a;b", "$(x)", "`x`", "a\n"}) {
        EXPECT_NE(host_problem(bad), "") << bad;
    }
    for (const char* good : {"node-1.cluster", "10.0.0.1", "fd00::2", "user@node"}) {
        EXPECT_EQ(host_problem(good), "") << good;
    }
}

TEST(Starters, WordsOfEachWay) {
    Starter starter{{"ssh", "-p", "22"}, false, "/opt/with blank/deft"};
    EXPECT_THAT(starter.words("far", {"probe"}),
                ElementsAre("ssh", "-p", "22", "far", "'/opt/with blank/deft'", "probe"));
    EXPECT_THAT(starter.words("localhost", {"probe"}),
                ElementsAre("/opt/with blank/deft", "probe"));
    starter.slurm = true;
    EXPECT_THAT(starter.words("far", {"probe"}),
                ElementsAre("srun", "--overlap", "--quiet", "--nodes=1", "--ntasks=1",
                            "--nodelist=far", "/opt/with blank/deft", "probe"));
}

TEST(Result, SurvivesItsJson) {
    const ProbeResult result{{two_links()}, {}};
    ProbeResult again;
    std::string problem;
    ASSERT_TRUE(add_json(json_text(result), again, problem)) << problem;
    EXPECT_EQ(json_text(again), json_text(result));
    EXPECT_EQ(human_text(again), human_text(result));
}

TEST(Result, OfAStrangerIsRefused) {
    for (const char* text : {"", "{}", "[]", R"({"format":"deft-probe","version":2,"pairs":[]})",
                             R"({"format":"deft-probe","version":1,"pairs":[{}]})",
                             R"({"format":"deft-probe","version":1,"pairs":3})"}) {
        ProbeResult result;
        std::string problem;
        EXPECT_FALSE(add_json(text, result, problem)) << text;
        EXPECT_NE(problem, "");
    }
}

TEST(Verdict, LinksOfDifferentNetworksNeedNotReachEachOther) {
    const ProbeResult result{{two_links()}, {}};
    EXPECT_EQ(exit_code(result), 0);
    EXPECT_THAT(human_text(result), HasSubstr("well: every link reaches the other side\n"));
    EXPECT_THAT(human_text(result), HasSubstr("eth1 (MTU 9000)  no way           10.0 / 10.0"));
}

TEST(Verdict, NamesWhatDoesNotPass) {
    ProbeResult result{{two_links()}, {}};
    LinkPair& second = result.pairs[0].links[3];
    second.problem = "no answer";
    EXPECT_EQ(exit_code(result), 1);
    const std::string text = human_text(result);
    EXPECT_THAT(text, HasSubstr("warning: eth1 of a to eth1 of b: no answer (10.0.0.1 to"));
    EXPECT_THAT(text, HasSubstr("eth1 of b reaches no link of a"));
    EXPECT_THAT(text, HasSubstr("BLOCKED"));
}

TEST(Verdict, NamesLossOtherReleasesAndSilence) {
    ProbeResult result{{two_links()}, {}};
    result.pairs[0].links[0].back->sent_again = 0.002;
    EXPECT_EQ(exit_code(result), 1);
    EXPECT_THAT(human_text(result), HasSubstr("0.20 % of the segments were sent again"));
    result.pairs[0].to_version = "2";
    EXPECT_THAT(human_text(result), HasSubstr("a has deft 1, b has 2"));
    result.pairs[0].problem = "b:1: no answer";
    EXPECT_EQ(exit_code(result), 3);
    EXPECT_THAT(human_text(result), Not(HasSubstr("well")));
}

TEST(Text, OfThreeHostsHasAMatrixOfHosts) {
    ProbeResult result{{two_links(), two_links(), two_links()}, {}};
    result.pairs[1].to = result.pairs[2].to = "c";
    result.pairs[2].from = "b";
    result.pairs[2].links[0].there->bytes_per_s = 2.5e9;
    EXPECT_THAT(human_text(result), HasSubstr("     a     b     c\n"
                                              "  a        10.0  10.0\n"
                                              "  b  10.0        20.0\n"
                                              "  c  10.0  10.0\n"));
}

}  // namespace
}  // namespace deft::tools::probe
