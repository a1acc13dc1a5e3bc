// SPDX-License-Identifier: Apache-2.0
// One rank's director under a leader that the test plays.
#pragma once

#include <thread>

#include "perf/executor/plans.h"
#include "planner/model/plan_json.h"
#include "tests/component/shim/control/one_rank.h"

namespace deft::director::test {

class Follower : public OneRank {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(OneRank::SetUp());
        scene_.join(0)->created();
        ASSERT_NO_FATAL_FAILURE(join(1));
        ASSERT_TRUE(scene_.all(agreement::Verdict::On));
        for (int iteration = 0; iteration < 8; ++iteration) {
            for (const std::uint64_t count : kCounts) {
                track_.feed(record(ordinal_++, count));
            }
        }
    }

    // Up to where the background thread (returned) makes a lane, which NCCL does not finish.
    std::thread held_in_the_making() {
        order(Kind::Stage);
        EXPECT_TRUE(answers(Step::Learned)) << answer().reason;
        order(Kind::Open);
        g_lanes.held = true;
        std::thread background([this] { director_->tick(track_); });
        EXPECT_TRUE(eventually([] { return g_lanes.making == 1; }));
        return background;
    }

    // The leader proposes it and all ranks have heard the decision.
    void order(Kind kind, std::uint64_t switch_call = ~0ULL,
               agreement::Decision decision = agreement::Decision::Commit) {
        propose(kind, switch_call);
        ASSERT_TRUE(eventually([&] { return scene_.member(0).decisions().count(serial_) == 1; }));
        // The leader's own is the last word it gives; the follower's has been sent by then.
        ASSERT_EQ(
            scene_[1].wait_decision(serial_, agreement::Clock::now() + agreement::test::kPatience),
            decision);
    }
    // The same, without a decision yet.
    void propose(Kind kind, std::uint64_t switch_call) {
        Order order;
        order.kind = kind;
        order.stage = kind == Kind::Stage ? serial_ + 1 : stage_;
        stage_ = order.stage;
        order.signature = view_job(track_, 1, false).signature;
        if (kind == Kind::Stage) {
            planner::Plan plan =
                executor::test::uniform_plan({kCounts[0] * 4, kCounts[1] * 4}, merge_, delay_,
                                             parts_, static_cast<std::uint32_t>(parts_.size()));
            plan.barrier = barrier_;
            plan.predicted.max_delay = delay_;
            plan.predicted.max_merge = merge_;
            order.plan = planner::plan_to_json(plan);
            order.prediction = executor::to_text({});
            order.iterations = iterations_run_;
        }
        if (kind == Kind::Open) {
            order.lanes.resize(lanes_wanted_ - lanes_);
        }
        order.ordinal = ordinal_;
        order.keep = lanes_;
        order.patience_ms = patience_ms_;
        agreement::Proposal proposal;
        proposal.serial = ++serial_;
        proposal.switch_call = switch_call;
        proposal.body = encode(order);
        proposal.patience = agreement::test::kPatience;
        ASSERT_TRUE(eventually([&] { return scene_[0].propose(proposal); }));
    }
    // The rank's last answer about the stage in hand.
    Staged answer() {
        Staged last;
        last.reason = "nothing was heard";
        for (const auto& [rank, text] : scene_.member(0).heard()) {
            Staged staged;
            if (rank == 1 && decode(agreement::test::bytes(text), staged) &&
                staged.stage == stage_) {
                last = staged;
            }
        }
        return last;
    }
    bool answers(Step step) {
        return eventually([&] {
            director_->tick(track_);
            const Staged last = answer();
            return last.step == step && last.reason != "nothing was heard";
        });
    }
    // The lanes of a plan are connected, and nobody has named a call at which they are tried.
    void open_untried() {
        order(Kind::Stage);
        ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
        order(Kind::Open);
        ASSERT_TRUE(answers(Step::Opened)) << answer().reason;
    }
    // A plan is staged: lanes, memory, all of it.
    void stage() {
        order(Kind::Stage);
        ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
        order(Kind::Open);
        if (lanes_ < lanes_wanted_) {
            ASSERT_NO_FATAL_FAILURE(rehearse());
        }
        ASSERT_TRUE(answers(Step::Ready)) << answer().reason;
        lanes_ = lanes_wanted_;
        between_.reset();  // its memory is not the plan's
    }
    // The lanes are open, and all ranks are to try them at the job's next call, which it makes.
    void rehearse() {
        ASSERT_TRUE(answers(Step::Opened)) << answer().reason;
        order(Kind::Rehearse, ordinal_);
        make_next_calls();
    }
    // An iteration of the job's, whatever becomes of it.
    void make_next_calls() {
        between_ = std::make_unique<Job>();
        for (const std::uint64_t count : kCounts) {
            between_->make(*director_, ordinal_++, count);
        }
        director_->take_update();
    }
    void TearDown() override {
        OneRank::TearDown();
        between_.reset();
    }

    // Under the plan, of which so many iterations are over, to where the ranks hear each other.
    void until_renewal(Job& job, std::uint64_t iterations) {
        for (; iterations % executor::Lease::kEvery != 0; ++iterations) {
            job.iteration(*director_, ordinal_);
        }
    }

    // The leader needs no lane any more.
    void close_lanes(agreement::Decision decision = agreement::Decision::Commit) {
        lanes_ = 0;
        order(Kind::Close, ~0ULL, decision);
        director_->tick(track_);
    }

    std::uint64_t serial_ = 0;
    std::uint64_t stage_ = 0;
    std::uint64_t lanes_ = 0;  // that are open
    std::uint64_t lanes_wanted_ = 1;
    std::vector<executor::test::Part> parts_{{1, 0}};  // of each sum, and their lanes
    std::uint32_t delay_ = 1;
    std::uint32_t merge_ = 1;
    planner::Barrier barrier_ = planner::Barrier::Update;
    std::uint64_t patience_ms_ = 60'000;
    std::unique_ptr<Job> between_;
    std::uint64_t iterations_run_ = 0;  // under plans, as the leader says
};

// A peer is gone, so the last transfer of a plan in force stands still.
class StuckTransfer : public Follower {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(Follower::SetUp());
        stage();
        order(Kind::Arm, ordinal_);
        job_ = std::make_unique<Job>();
        g_lanes.held_transfers = true;
        job_->iteration(*director_, ordinal_);
        director_->tick(track_);
        ASSERT_EQ(director_->facts().state, "running");
    }
    void TearDown() override {
        Follower::TearDown();
        job_.reset();
    }

    std::unique_ptr<Job> job_;
};

}  // namespace deft::director::test
