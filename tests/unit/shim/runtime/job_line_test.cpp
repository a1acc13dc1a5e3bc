// SPDX-License-Identifier: Apache-2.0
// Which job a process belongs to, and the line that says what deft did for it.
#include "shim/runtime/job_line.h"

#include <gtest/gtest.h>
#include <time.h>

#include <cmath>
#include <string_view>

#include "base/link_stats.h"
#include "shim/runtime/metrics.h"

namespace deft {
namespace {

using namespace std::string_view_literals;

TEST(OwnJob, CommandIsItsWords) {
    EXPECT_EQ(command_in("python\0train.py\0--lr=1\0"sv), "python train.py --lr=1");
    EXPECT_EQ(command_in(std::string(5000, 'a')), std::string(1024, 'a') + " ...");
    EXPECT_EQ(command_in(""), "");
}

TEST(OwnJob, OfThisProcess) {
    const OwnJob job = own_job();
    EXPECT_NE(job.command.find("job_line_test"), std::string::npos) << job.command;
    const std::string now = utc_text(::time(nullptr));
    EXPECT_LE(job.started, now);
    EXPECT_EQ(job.started.substr(0, 2), now.substr(0, 2)) << job.started;
    EXPECT_EQ(utc_text(1795705670), "2026-11-26T15:07:50Z");
}

ReportFacts facts_with(PlanFacts plan) {
    ReportFacts facts;
    facts.ranks = 4;
    facts.mode = "deft";
    facts.plans.push_back(std::move(plan));
    return facts;
}

TEST(JobLine, SaysWhyThereWasNoPlan) {
    PlanFacts plan;
    plan.state = "watching";
    plan.reason = "no plan is worth it";
    EXPECT_EQ(job_line(facts_with(plan), nullptr),
              "job of 4 ranks has ended: mode deft; no plan was in force, state watching: no plan "
              "is worth it");
    plan.switched = 1;
    plan.state = "fallen";
    plan.reason = "";
    plan.guard_decisions = 2;
    plan.updates = 0.5;  // of the one that was proposed last
    plan.progress = 0.476;
    EXPECT_EQ(job_line(facts_with(plan), nullptr),
              "job of 4 ranks has ended: mode deft; a plan was in force and has ended, state "
              "fallen; guard: 2 decisions");
}

TEST(JobLine, SaysWhatAPlanDidThatHasFallen) {
    PlanFacts plan;
    plan.state = "fallen";
    plan.switched = 1;
    plan.guard_decisions = 2;  // and the plan that came later is not late at all
    GuardEvent event{80, "fall back", "the loss rose", true};
    event.from = 61;
    event.to = 83;
    event.late_by = 2;
    event.dropped = 1;
    event.loss_expected = 0.52;
    event.loss_seen = 1.9;
    plan.guard_history = {event, {283, "resume", "", true}};
    const std::string line = job_line(facts_with(plan), nullptr);
    const std::string wanted =
        "guard: 2 decisions; it ended a plan that was in force in iterations 61 to 83: the loss "
        "rose; gradients were up to 2 iterations late, 1 generations were dropped, and the loss "
        "was 1.9 where its trend was 0.52 at most";
    EXPECT_NE(line.find(wanted), std::string::npos) << line;
    plan.guard_history[0].loss_seen = std::nan("");
    EXPECT_EQ(job_line(facts_with(plan), nullptr).find("and the loss"), std::string::npos);
    plan.guard_history[0].acted = false;
    EXPECT_EQ(job_line(facts_with(plan), nullptr).find("it ended"), std::string::npos);
}

TEST(JobLine, SaysWhatThePlanInForceBrought) {
    Track track;
    for (int i = 0; i < 40; ++i) {
        CallRecord record;
        record.comm_serial = 1;
        record.count = 1000;
        record.type = DEFT_NCCL_FLOAT32;
        record.op = DEFT_NCCL_SUM;
        record.nranks = 4;
        record.issued_ns = i * 80'000'000LL;
        track.feed(record);
        track.settle();
    }
    PlanFacts plan;
    plan.state = "running";
    plan.policy = "edf";
    plan.before_ms = 100;
    plan.updates = 0.5;
    LinkCounters& link = LinkStats::process().link("eth0", "tcp");
    link.bytes_sent = 1'500'000;
    link.resent_bytes = 200'000;
    const std::string line = job_line(facts_with(plan), &track);
    EXPECT_NE(line.find("iterations of 80.00 ms"), std::string::npos) << line;
    EXPECT_NE(line.find("plan 'edf' in force: 100.00 ms before it, 20.0 % less now, 0.5 updates an "
                        "iteration; sent eth0 1.5 MB; 0.2 MB sent again"),
              std::string::npos)
        << line;
    EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(Metrics, TellTheLossWhereItIsKnown) {
    PlanFacts plan;
    EXPECT_EQ(metrics_text(facts_with(plan), nullptr, {}).find("deft_guard_loss"),
              std::string::npos);
    plan.loss = 2.5;
    plan.loss_expected = 2.25;
    const std::string text = metrics_text(facts_with(plan), nullptr, {});
    EXPECT_NE(text.find("# TYPE deft_guard_loss gauge\ndeft_guard_loss{"), std::string::npos);
    EXPECT_NE(text.find("} 2.5\n"), std::string::npos) << text;
    EXPECT_NE(text.find("# TYPE deft_guard_loss_expected gauge\n"), std::string::npos);
    EXPECT_NE(text.find("} 2.25\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace deft
