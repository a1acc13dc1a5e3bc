// SPDX-License-Identifier: Apache-2.0
// The leader's director over a real council, beside a follower that the test plays: it hears the
// orders and answers them. The job's calls are real, their times are made up.
#pragma once

#include <algorithm>
#include <optional>

#include "planner/model/plan_json.h"
#include "tests/component/shim/control/one_rank.h"

namespace deft::director::test {

constexpr std::uint64_t kPeriod = 4;  // calls, of the first plan

// Sent at 4 MB/s: 100 and 30 ms.
inline constexpr std::uint64_t kGradients[] = {100'000, 30'000};
// Of another cycle.
inline constexpr std::uint64_t kOthers[] = {90'000, 40'000};

// When the data of the two gradients are there and how long their transfers take, in ms.
struct Pace {
    std::int64_t ready[2];
    std::int64_t transfer[2];
};

// The second gradient is ready when the first has almost been sent. The host runs far ahead of the
// device, so all that can be known is that the second waited for the first: it is taken to have
// been ready at 31 ms, as the first was at 30 ms.
inline constexpr Pace kHidden = {{30, 125}, {100, 30}};
// Nothing is sent, and the second starts when it is ready.
inline constexpr Pace kIdle = {{30, 125}, {1, 1}};
// The same where it was ready as early as was guessed.
inline constexpr Pace kEarlyIdle = {{30, 31}, {1, 1}};
inline constexpr Pace kSlow = {{30, 31}, {500, 100}};

class Leader : public OneRank {
protected:
    struct Heard {
        Order order;
        std::uint64_t serial = 0;
        std::uint64_t asked_at = 0;     // of the proposal: where the ranks ask each other
        std::uint64_t switch_call = 0;  // of the first call that finds it
    };

    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(OneRank::SetUp());
        ASSERT_NO_FATAL_FAILURE(join(0));
        scene_.join(1)->created();
        ASSERT_TRUE(scene_.all(agreement::Verdict::On));
        job_.emplace(kGradients[0]);
    }

    // One iteration of the job. Every call has to be taken by a plan, or forwarded.
    void iterate(const Pace& pace, bool taken, int times = 1) {
        for (int i = 0; i < times; ++i) {
            const std::int64_t begin = now_ms_;
            for (int bucket = 0; bucket < 2; ++bucket) {
                EXPECT_EQ(job_->make(*director_, ordinal_, kGradients[bucket]), taken) << ordinal_;
                observe(kGradients[bucket], pace, bucket, begin);
            }
        }
    }
    // Iterations of another kind, as an evaluation may be; all calls are forwarded. `unseen`: by
    // the director, whose hooks have yet to come to them.
    void iterate_other(const Pace& pace, int times, bool unseen = false) {
        for (int i = 0; i < times; ++i) {
            const std::int64_t begin = now_ms_;
            for (int bucket = 0; bucket < 2; ++bucket) {
                EXPECT_FALSE(!unseen && job_->make(*director_, ordinal_, kOthers[bucket]));
                observe(kOthers[bucket], pace, bucket, begin);
            }
        }
    }
    // The job's next call, with the times that the device measures.
    void observe(std::uint64_t count, const Pace& pace, int bucket, std::int64_t begin_ms) {
        observe(record(ordinal_, count), pace, bucket, begin_ms);
    }
    void observe(CallRecord called, const Pace& pace, int bucket, std::int64_t begin_ms) {
        constexpr std::int64_t kMs = 1'000'000;
        constexpr std::int64_t kAhead = 100;  // of the device, in ms
        ++ordinal_;
        called.stream = 7;
        called.issued_ns = (begin_ms - kAhead + bucket) * kMs;
        track_.feed(called);
        const std::int64_t start = std::max(begin_ms + pace.ready[bucket], now_ms_);
        now_ms_ = start + pace.transfer[bucket];
        if (!track_.waiting().empty()) {
            TimedCall& call = track_.waiting().back().call;
            call.timed = true;
            call.start = start * kMs;
            call.end = now_ms_ * kMs;
        }
        track_.settle();
    }
    // One more gradient, as no iteration has it.
    void interrupt() {
        constexpr std::uint64_t kOther = 20'000;
        EXPECT_FALSE(job_->make(*director_, ordinal_, kOther));
        track_.feed(record(ordinal_++, kOther));
        track_.settle();
    }
    // Periods of a plan that merges two iterations.
    void iterate_merged(const Pace& idle, const Pace& sending, int periods) {
        for (int i = 0; i < periods; ++i) {
            iterate(idle, true);
            iterate(sending, true);
        }
    }

    // The job's background thread goes on, so that what must not happen is seen to happen.
    void linger(std::chrono::milliseconds time = std::chrono::milliseconds(50)) {
        const auto until = agreement::Clock::now() + time;
        ticks_until([&] { return agreement::Clock::now() >= until; });
    }
    template <class Predicate>
    bool ticks_until(Predicate&& predicate) {
        return eventually([&] {
            director_->tick(track_);
            return predicate();
        });
    }

    // The next order that all ranks were given, none left out.
    Heard hear() {
        Heard heard;
        const bool came = ticks_until([&] {
            const std::map<std::uint64_t, bool> decisions = scene_.member(1).decisions();
            for (const agreement::Proposal& proposal : scene_.member(1).asked()) {
                const auto decided = decisions.find(proposal.serial);
                if (proposal.serial <= heard_ || decided == decisions.end()) {
                    continue;
                }
                heard_ = proposal.serial;
                if (decided->second) {
                    heard.serial = proposal.serial;
                    heard.asked_at = proposal.switch_call;
                    return decode(proposal.body, heard.order);
                }
            }
            return false;
        });
        EXPECT_TRUE(came) << "no order came; " << director_->facts().reason;
        // The leader's own hooks know of it, too.
        (void)scene_[0].wait_decision(heard.serial,
                                      agreement::Clock::now() + agreement::test::kPatience);
        const bool named = heard.asked_at < PlanSwitch::kAtRenewal;
        heard.switch_call = named ? heard.order.begin : renewal();
        return heard;
    }
    // The call at which the plan in force gives way, if that is decided now.
    std::uint64_t renewal() {
        const executor::Lease lease(period_, true);
        std::uint64_t asked = (ordinal_ - in_force_at_ + 1) / 2;
        while (!lease.asks(asked)) {
            ++asked;
        }
        return in_force_at_ + 2 * (asked + executor::Lease::kAfter);
    }
    // So many have been proposed.
    std::size_t proposed() { return scene_.member(1).asked().size(); }
    // So many have been asked for, those that came to nothing included, but for trials of lanes.
    std::size_t asked() {
        std::size_t count = 0;
        for (const agreement::Proposal& proposal : scene_.member(1).asked()) {
            Order order;
            count += decode(proposal.body, order) && order.kind == Kind::Rehearse ? 0 : 1;
        }
        return count;
    }

    void answer(Step step, bool may_pass = false, const std::string& reason = "") {
        answer_from(ordinal_, step, may_pass, reason);
    }
    // The follower is at this call.
    void answer_from(std::uint64_t ordinal, Step step, bool may_pass = false,
                     const std::string& reason = "", bool timed_out = false) {
        ASSERT_TRUE(
            scene_[1].report(encode(Staged{stage_, ordinal, step, may_pass, reason, timed_out})));
    }

    // What makes the guard give up the plan in force at once.
    void report_not_finite() {
        guard::Statistics measured;
        measured.not_finite = 3;
        const auto report = guard::encode(measured);
        ASSERT_TRUE(scene_[1].report(report));
    }

    // Up to where the follower is asked whether it has learned the cycle. The plan that is meant.
    planner::Plan staged() {
        const Heard heard = hear();
        EXPECT_EQ(heard.order.kind, Kind::Stage);
        EXPECT_EQ(heard.order.stage, heard.serial);
        EXPECT_EQ(heard.order.signature, view_job(track_, 1, false).signature);
        stage_ = heard.serial;
        return planner::plan_from_json(heard.order.plan);
    }
    // An order about the stage in hand.
    Heard heard(Kind kind) {
        const Heard heard = hear();
        EXPECT_EQ(heard.order.kind, kind);
        EXPECT_EQ(heard.order.stage, kind == Kind::Forward ? 0 : stage_);
        return heard;
    }
    // The lanes that the leader asks for are there, and have been tried at a call of the job's.
    Order opened() {
        const Order order = heard(Kind::Open).order;
        if (!order.lanes.empty()) {
            answer(Step::Opened);
            try_lanes(heard(Kind::Rehearse).asked_at);
        }
        return order;
    }
    // The job goes on to an iteration behind that call, whatever takes its own.
    void try_lanes(std::uint64_t call) {
        EXPECT_GE(call, ordinal_);
        while (ordinal_ <= call) {
            iterate_anyhow();
        }
    }
    // An iteration, taken by a plan or not.
    virtual void iterate_anyhow() {
        const std::int64_t begin = now_ms_;
        for (int bucket = 0; bucket < 2; ++bucket) {
            job_->make(*director_, ordinal_, kGradients[bucket]);
            observe(kGradients[bucket], kHidden, bucket, begin);
        }
    }
    // From there to the call at which the plan comes into force. `follower`: the call it is at.
    std::uint64_t armed(std::uint64_t follower = 0) {
        answer(Step::Learned);
        opened();
        answer_from(follower, Step::Ready);
        return heard(Kind::Arm).switch_call;
    }
    // The first plan in force: gradients of two iterations are sent at once.
    void bring_into_force() {
        iterate(kHidden, false, 20);
        ASSERT_EQ(staged().predicted.max_merge, 2U);
        const std::uint64_t at = armed();
        reach(at, false);
        in_force_at_ = at;
        iterate(kIdle, true);
        ASSERT_TRUE(ticks_until([&] { return director_->facts().switched == 1; }));
        period_ = director_->facts().period;
        iterate(kHidden, true);
    }
    // To that call, which is the first of an iteration.
    void reach(std::uint64_t call, bool taken) {
        ASSERT_LE(ordinal_, call);
        ASSERT_EQ((call - ordinal_) % 2, 0U) << "in the middle of an iteration";
        ASSERT_LE(call - ordinal_, 200U);
        for (int i = 0; ordinal_ < call; ++i) {
            iterate(taken && i % 2 == 0 ? kIdle : kHidden, taken);
        }
    }
    // Enough of it that the leader looks again and finds that the second gradient is ready late.
    // The plan it wants instead.
    planner::Plan wanted_instead() {
        iterate_merged(kIdle, kHidden, 10);
        return staged();
    }
    bool old_plan_in_force() {
        const PlanFacts facts = director_->facts();
        EXPECT_EQ(facts.state, "running");
        EXPECT_EQ(facts.switched, 1U);
        EXPECT_EQ(facts.max_merge, 2U);
        EXPECT_EQ(facts.max_delay, 0U);
        EXPECT_EQ(facts.period, 2U);
        return !::testing::Test::HasFailure();
    }

    std::optional<Job> job_;
    std::int64_t now_ms_ = 1000;
    std::uint64_t heard_ = 0;  // serial of the last order
    std::uint64_t stage_ = 0;
    std::uint64_t in_force_at_ = 0;  // the plan in force is, from this call on
    std::uint32_t period_ = 1;       // and in iterations, its period
};

}  // namespace deft::director::test
