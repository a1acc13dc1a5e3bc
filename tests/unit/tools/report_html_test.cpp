// SPDX-License-Identifier: Apache-2.0
// What a plan brought, who was late, and the page that says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <regex>

#include "tools/html_page.h"
#include "tools/report.h"
#include "tools/report_gain.h"

namespace deft::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Quantiles times(double median, double apart, std::int64_t n) {
    return {median, median - apart, median + apart, n};
}

ObserveFile rank(std::int64_t number) {
    ObserveFile file;
    file.path = "r.json";
    file.host = number % 2 == 0 ? "left" : "right";
    file.rank = number;
    file.ranks = 2;
    file.mode = "deft";
    file.calls = {{"ncclAllReduce", 90}};
    file.stable = true;
    file.iterations_seen = 400;
    file.cycle_length = 1;
    file.time_ms = times(80, 8, 400);
    file.compute_ms = times(50, 1, 30);
    file.exposed_ms = times(number == 1 ? 35 : 30, 1, 30);
    file.coverage_rate = times(1.4, 0.1, 30);
    ObservedBucket bucket;
    bucket.bytes = 1 << 20;
    bucket.ready_ms = times(number == 1 ? 42 : 30, 1, 30);
    bucket.transfer_ms = times(40, 1, 30);
    file.buckets = {bucket};
    file.links = {{"eth0", "tcp", 3 << 20, 1 << 20, 3, 1 << 20, 4, 12.5, 1000.0}};
    return file;
}

ObservedPlan plan() {
    ObservedPlan made;
    made.state = "running";
    made.policy = "best";
    made.before_ms = 100;
    made.before = times(100, 5, 50);
    made.predicted_ms = 78;
    made.bound_ms = 70;
    made.switched = 1;
    made.guard_decisions = 3;
    return made;
}

RunReport two_ranks() {
    std::vector<ObserveFile> files{rank(0), rank(1)};
    files[0].plans = {plan()};
    files[1].plans = {ObservedPlan()};
    files[1].plans[0].state = "staging";
    return compare_ranks(files);
}

TEST(Gain, HasAnIntervalOfConfidence) {
    const RunReport run = two_ranks();
    const PlanGain gain = gain_of(run);
    ASSERT_TRUE(gain.change);
    EXPECT_EQ(gain.rank, 0);
    EXPECT_DOUBLE_EQ(gain.change->middle, -0.2);
    // 16 ms between the deciles of 400, 10 ms between those of 50 samples.
    EXPECT_NEAR(gain.now->half, 1.96 * 1.2533 * 16 / 2.563 / 20, 1e-9);
    EXPECT_NEAR(gain.before->half, 1.96 * 1.2533 * 10 / 2.563 / std::sqrt(50), 1e-9);
    EXPECT_NEAR(gain.change->half, 0.8 * std::hypot(gain.now->half / 80, gain.before->half / 100),
                1e-9);
}

TEST(Gain, IsUnknownWithoutATimeBefore) {
    RunReport run = two_ranks();
    run.ranks[0].plans[0].before_ms = 0;  // the writer did not know it
    EXPECT_FALSE(gain_of(run).before);
    EXPECT_FALSE(gain_of(run).change);
    run.ranks[0].plans[0] = plan();
    run.ranks[0].plans[0].state = "fallen";
    EXPECT_FALSE(gain_of(run).now) << "the times are those of the job without the plan again";
}

TEST(Late, NamesBucketAndRank) {
    const std::vector<Latecomer> late = latecomers(two_ranks());
    ASSERT_EQ(late.size(), 1u);
    EXPECT_EQ(late[0].rank, 1);
    EXPECT_DOUBLE_EQ(late[0].late_ms, 12);
    EXPECT_TRUE(latecomers(compare_ranks({rank(0)})).empty());
}

TEST(Page, SaysFirstWhetherItHelped) {
    const std::string page = html_report(two_ranks());
    EXPECT_THAT(page, HasSubstr("Under the plan &#39;best&#39; an iteration takes 80.00 ± 0.77 ms, "
                                "and took 100.00 ± 1.36 ms before it: 20.0 ± 1.3 % less, which is "
                                "more than chance."));
    EXPECT_THAT(page, HasSubstr("<b>-20.0 %</b>"));
    EXPECT_THAT(page, HasSubstr("Bucket 0 was held up longest: rank 1 was 12.00 ms behind"));
    EXPECT_THAT(page, HasSubstr("Rank 1 of right waited longest for transfers: 35.00 ms"));
    EXPECT_THAT(page, HasSubstr("<td>left</td><td>eth0</td><td class=\"n\">3.0 MiB</td>"));
    EXPECT_LT(page.find("Under the plan"), page.find("<h2>Iteration time"));
}

TEST(Page, CountsUpdates) {
    RunReport run = two_ranks();
    run.ranks[0].plans[0].updates_per_iteration = 0.5;
    EXPECT_THAT(html_report(run), HasSubstr("0.5 updates an iteration: one update takes 160.00 ms, "
                                            "and took 100.00 ms."));
}

TEST(Page, TellsWhatTheGuardDecided) {
    RunReport run = two_ranks();
    EXPECT_THAT(html_report(run), Not(HasSubstr("decisions</h2>")));
    run.ranks[0].plans[0].guard_history = {{120, "fall back", "the norm grew 5 times", false}};
    EXPECT_THAT(html_report(run), HasSubstr("<td class=\"n\">120</td><td>fall back (only said: "
                                            "DEFT_GUARD=warn)</td><td>the norm grew 5 times</td>"));
    run.ranks[0].plans[0].guard_history = {
        {120, "fall back", "the loss rose", true, 90, 130, 1, 2, 0.5, 1.75}};
    EXPECT_THAT(
        html_report(run),
        HasSubstr("<td>in force in iterations 90 to 130; gradients up to 1 iterations late; "
                  "2 dropped; loss 1.75, its trend 0.5 at most</td>"));
}

TEST(Page, NeedsNothingElseAndIsWellFormed) {
    const std::string page = html_report(two_ranks());
    EXPECT_THAT(page,
                AllOf(HasSubstr("name=\"viewport\""), HasSubstr("prefers-color-scheme"),
                      Not(HasSubstr("http")), Not(HasSubstr("<script")), Not(HasSubstr(" src="))));
    const std::regex tag("<(/?)([a-z0-9]+)[^>]*>");
    std::vector<std::string> open;
    for (std::sregex_iterator at(page.begin(), page.end(), tag), end; at != end; ++at) {
        const std::string name = (*at)[2];
        if (name == "meta") {
            continue;
        }
        if ((*at)[1].length() == 0) {
            open.push_back(name);
        } else {
            ASSERT_FALSE(open.empty());
            EXPECT_EQ(open.back(), name);
            open.pop_back();
        }
    }
    EXPECT_TRUE(open.empty());
}

TEST(Page, OfRecordsWithoutFiguresStaysReadable) {
    ObserveFile file;
    file.ranks = 1;
    const std::string page = html_report(compare_ranks({file}));
    EXPECT_THAT(page, HasSubstr("Nothing was planned, and no iteration was timed."));
    EXPECT_THAT(page, HasSubstr("No iteration was learned."));
    EXPECT_THAT(page, HasSubstr("problem: rank 0: the hooks were never reached"));
    EXPECT_THAT(page, Not(HasSubstr("nan")));
    EXPECT_THAT(page, Not(HasSubstr("inf%")));
}

TEST(Page, AFileCannotAddToIt) {
    RunReport run = two_ranks();
    for (ObserveFile& file : run.ranks) {
        file.host = "<script>alert(1)</script>";
        file.links[0].name = "\"><img src=x>";
        file.job = {"<b>", "a && b", "", ""};
        file.mode = "<i>";
        file.plans[0].policy = "<u>";
        file.plans[0].reason = "\x1b[2J<s>";
    }
    const std::string page = html_report(run);
    for (const char* bad : {"<script", "<img", "<s>", "\x1b"}) {
        EXPECT_THAT(page, Not(HasSubstr(bad)));
    }
    EXPECT_THAT(page, HasSubstr("a &amp;&amp; b"));
}

TEST(Compare, RecordsOfTwoJobsAreAProblem) {
    std::vector<ObserveFile> files{rank(0), rank(1)};
    files[0].job.id = "7";
    EXPECT_TRUE(compare_ranks(files).problems.empty()) << "one writer did not know it";
    files[1].job.id = "8";
    EXPECT_THAT(compare_ranks(files).problems,
                testing::Contains(HasSubstr("is of job 7, r.json of job 8")));
}

}  // namespace
}  // namespace deft::tools
