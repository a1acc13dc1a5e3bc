// SPDX-License-Identifier: Apache-2.0
// Compiled plans, executed on paper: every byte of every update must be what the plan says.
#include "shim/executor/script.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "deft/abi/nccl.h"
#include "perf/executor/plans.h"
#include "planner/model/fabric.h"
#include "planner/policies/policy.h"

namespace deft::executor::test {
namespace {

std::vector<Shape> floats(const std::vector<std::uint64_t>& counts) {
    std::vector<Shape> shapes;
    for (const std::uint64_t count : counts) {
        shapes.push_back({count, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM});
    }
    return shapes;
}

std::vector<std::uint64_t> bytes_of(const std::vector<Shape>& shapes) {
    std::vector<std::uint64_t> bytes;
    for (const Shape& shape : shapes) {
        bytes.push_back(shape.bytes());
    }
    return bytes;
}

// Runs a script with sets of iterations instead of numbers, and checks it against the plan. Slots
// start with a mark that must never be delivered.
class ScriptRun {
public:
    ScriptRun(const Plan& plan, const Script& script)
        : plan_(plan), script_(script), slots_(script.slots.size()) {}

    void call(std::int64_t t, std::uint32_t b) {
        const Action& action = script_.action(static_cast<std::uint64_t>(t), b);
        where_ = "iteration " + std::to_string(t) + " bucket " + std::to_string(b);
        direct_.clear();
        got_.clear();
        for (std::uint32_t i = action.accumulate; i < action.accumulate_end; ++i) {
            ASSERT_NO_FATAL_FAILURE(accumulate(script_.accumulates[i].slot, t));
        }
        for (std::uint32_t i = action.launch; i < action.launch_end; ++i) {
            ASSERT_NO_FATAL_FAILURE(launch(script_.launches[i], b));
        }
        for (std::uint32_t i = action.deliver; i < action.deliver_end; ++i) {
            ASSERT_NO_FATAL_FAILURE(deliver(script_.deliveries[i], t));
        }
        if (action.forward) {
            got_[0].push_back(t);
        }
        check(t, b);
    }

private:
    struct Slot {
        std::vector<std::int64_t> holds;
        std::map<std::uint64_t, std::uint64_t> sent;  // begin -> end
        enum { Empty, Filling, Sent } state = Empty;
    };

    void accumulate(std::uint32_t number, std::int64_t t) {
        Slot& slot = slots_[number];
        ASSERT_NE(slot.state, Slot::Sent) << where_ << ": overwrites what is in flight";
        if (slot.state == Slot::Empty) {
            slot.holds.clear();
            slot.sent.clear();
        }
        slot.state = Slot::Filling;
        slot.holds.push_back(t);
    }

    void launch(const Launch& launch, std::uint32_t b) {
        ASSERT_LT(launch.lane, script_.lanes);
        if (launch.slot == kDirect) {
            ASSERT_EQ(script_.regions[launch.region].bucket, b) << where_;
            direct_[launch.region] += launch.end - launch.begin;
            return;
        }
        Slot& slot = slots_[launch.slot];
        if (slot.state != Slot::Empty) {
            slot.state = Slot::Sent;
            slot.sent[launch.begin] = launch.end;
        }
    }

    void deliver(const Deliver& deliver, std::int64_t t) {
        const Region& region = script_.regions[deliver.region];
        auto& into = got_[region.begin];
        ASSERT_EQ(deliver.add, !into.empty()) << where_;
        if (deliver.slot == kDirect) {
            ASSERT_EQ(direct_[deliver.region], region.end - region.begin) << where_;
            into.push_back(t);
            return;
        }
        Slot& slot = slots_[deliver.slot];
        if (slot.state != Slot::Sent) {
            return;
        }
        std::uint64_t at = region.begin;
        for (const auto& [begin, end] : slot.sent) {
            ASSERT_EQ(begin, at) << where_;
            at = end;
        }
        ASSERT_EQ(at, region.end) << where_ << ": delivered before all was sent";
        into.insert(into.end(), slot.holds.begin(), slot.holds.end());
        slot.state = Slot::Empty;
    }

    void check(std::int64_t t, std::uint32_t b) {
        for (const Region& region : script_.regions) {
            if (region.bucket != b) {
                continue;
            }
            std::vector<std::int64_t> is = got_[region.begin];
            std::sort(is.begin(), is.end());
            auto wanted = delivered_iterations(plan_, t, b, region.begin);
            std::sort(wanted.begin(), wanted.end());
            ASSERT_EQ(is, wanted) << where_ << " byte " << region.begin;
        }
    }

    const Plan& plan_;
    const Script& script_;
    std::vector<Slot> slots_;
    // Of the call in hand:
    std::string where_;
    std::map<std::uint32_t, std::uint64_t> direct_;           // region -> bytes sent
    std::map<std::uint64_t, std::vector<std::int64_t>> got_;  // by first byte of a region
};

void expect_follows_plan(const Plan& plan, const Script& script, std::int64_t iterations) {
    ScriptRun run(plan, script);
    for (std::int64_t t = 0; t < iterations; ++t) {
        for (std::uint32_t b = 0; b < script.shapes.size(); ++b) {
            ASSERT_NO_FATAL_FAILURE(run.call(t, b));
        }
    }
}

// Under a plan for layers that wait for their own: each lane sends what the plan has for it, in its
// order, once the gradient is there, all within the iteration. The last pieces are marked.
void expect_sends_in_order(const Plan& plan, const Script& script) {
    ASSERT_EQ(script.period, 1U);
    std::map<std::uint32_t, std::vector<const Transfer*>> wanted;  // by lane
    for (const Transfer& t : plan.transfers) {
        wanted[t.link].push_back(&t);
    }
    std::map<std::uint32_t, std::size_t> at;
    std::map<std::uint32_t, std::uint64_t> left;  // bytes of a bucket
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> left_on;
    for (const Transfer& t : plan.transfers) {
        left[t.bucket] += t.bytes();
        left_on[{t.bucket, t.link}] += t.bytes();
    }
    for (std::uint32_t b = 0; b < script.shapes.size(); ++b) {
        const Action& action = script.action(0, b);
        EXPECT_FALSE(action.forward);
        EXPECT_EQ(action.accumulate, action.accumulate_end);
        for (std::uint32_t i = action.launch; i < action.launch_end; ++i) {
            const Launch& launch = script.launches[i];
            const std::uint32_t bucket = script.regions[launch.region].bucket;
            ASSERT_LE(bucket, b) << "sent before it is there";
            ASSERT_LT(at[launch.lane], wanted[launch.lane].size());
            const Transfer& t = *wanted[launch.lane][at[launch.lane]++];
            ASSERT_EQ(std::tuple(bucket, launch.begin, launch.end),
                      std::tuple(t.bucket, t.begin, t.end));
            EXPECT_EQ(launch.slot, kDirect);
            left[bucket] -= t.bytes();
            left_on[{bucket, launch.lane}] -= t.bytes();
            EXPECT_EQ(launch.ends_bucket, left[bucket] == 0);
            EXPECT_EQ(launch.ends_lane, (left_on[{bucket, launch.lane}] == 0));
        }
    }
    for (const auto& [bucket, bytes] : left) {
        EXPECT_EQ(bytes, 0U) << "bucket " << bucket << " is not sent";
    }
}

TEST(Compile, UniformPlansAreFollowed) {
    const auto shapes = floats({1000, 70000, 129, 4096});
    for (std::uint32_t merge = 1; merge <= 4; ++merge) {
        for (std::uint32_t delay = 0; delay <= 3; ++delay) {
            for (std::uint32_t history = 0; history <= 2; ++history) {
                const Plan plan = uniform_plan(bytes_of(shapes), merge, delay, {{0.6, 0}, {1, 1}});
                CompileOptions options;
                options.lanes = 2;
                options.max_delay = 3;
                options.max_merge = 4;
                options.history = history;
                std::string problem;
                const Script script = compile(plan, shapes, options, problem);
                ASSERT_EQ(problem, "") << merge << " " << delay;
                EXPECT_EQ(script.max_delay, delay);
                EXPECT_EQ(script.max_merge, merge);
                expect_follows_plan(plan, script, 40);
            }
        }
    }
}

// Plans of the planner itself, over many shapes of jobs.
TEST(Compile, PlansOfEveryPolicyAreFollowed) {
    int compiled = 0;
    for (const double ratio : {0.5, 0.9, 1.3, 1.7, 2.4, 3.1}) {
        for (const std::uint32_t links : {1U, 2U}) {
            planner::Profile profile;
            profile.name = "test";
            profile.forward = 0.05;
            profile.backward = 0.1;
            std::vector<Shape> shapes;
            double ready = 0;
            for (const std::uint64_t count : {262144U, 6553600U, 6553600U, 2000000U, 9000000U}) {
                ready += 0.02;
                profile.buckets.push_back({"b", count * 4, ready, 0.01, {}, {}});
                shapes.push_back({count, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM});
            }
            planner::Fabric fabric;
            const double rate = static_cast<double>(profile.bytes()) / (ratio * 0.15);
            for (std::uint32_t l = 0; l < links; ++l) {
                planner::Link link;
                link.name = "link" + std::to_string(l);
                link.cost = {1e-4, (1 + l) / rate, {}};
                fabric.links.push_back(link);
            }
            for (const planner::Policy& policy : planner::policies()) {
                planner::Options wishes;
                wishes.max_delay = 2;
                wishes.max_merge = 3;
                const Plan plan = planner::make_plan(policy.name, profile, fabric, wishes);
                CompileOptions options;
                options.lanes = links;
                options.max_delay = 2;
                options.max_merge = 3;
                options.residual = std::string(policy.name) == "covap";
                options.layers = plan.barrier == planner::Barrier::Layer;
                std::string problem;
                const Script script = compile(plan, shapes, options, problem);
                if (!problem.empty()) {
                    EXPECT_NE(problem.find("between two ranks only"), std::string::npos)
                        << policy.name << ": " << problem;
                    continue;
                }
                ++compiled;
                SCOPED_TRACE(policy.name);
                if (script.layers) {
                    expect_sends_in_order(plan, script);
                } else {
                    expect_follows_plan(plan, script, 3 * script.period + 8);
                }
            }
        }
    }
    EXPECT_GT(compiled, 60);
}

TEST(Compile, LaunchesFollowThePlansOrderOnALane) {
    // Delay 1, and the plan sends bucket 2 before bucket 0 and 1: nothing is sent before it is.
    const auto shapes = floats({1024, 1024, 1024});
    Plan plan = uniform_plan(bytes_of(shapes), 1, 1, {{1, 0}});
    std::swap(plan.transfers[0].order, plan.transfers[2].order);
    std::sort(plan.transfers.begin(), plan.transfers.end(),
              [](const Transfer& a, const Transfer& b) { return a.order < b.order; });
    CompileOptions options;
    options.lanes = 1;
    std::string problem;
    const Script script = compile(plan, shapes, options, problem);
    ASSERT_EQ(problem, "");
    std::vector<std::uint32_t> order;
    for (std::uint32_t b = 0; b < 3; ++b) {
        const Action& action = script.action(0, b);
        for (std::uint32_t i = action.launch; i < action.launch_end; ++i) {
            order.push_back(script.regions[script.launches[i].region].bucket);
        }
    }
    EXPECT_EQ(order, (std::vector<std::uint32_t>{2, 1, 0}));
    expect_follows_plan(plan, script, 12);
}

Plan layer_plan(const std::vector<Shape>& shapes, std::vector<Transfer> transfers) {
    Plan plan = uniform_plan(bytes_of(shapes), 1, 0);
    plan.barrier = planner::Barrier::Layer;
    plan.transfers = std::move(transfers);
    for (std::uint32_t x = 0; x < plan.transfers.size(); ++x) {
        plan.transfers[x].order = x;
    }
    return plan;
}

TEST(Compile, WhereLayersWaitTheLastBucketOvertakesTheRestOfTheFirst) {
    const auto shapes = floats({2048, 1024, 1024});
    const Plan plan = layer_plan(shapes, {{.bucket = 0, .begin = 0, .end = 4096},
                                          {.bucket = 2, .begin = 0, .end = 4096},
                                          {.bucket = 1, .begin = 0, .end = 4096},
                                          {.bucket = 0, .begin = 4096, .end = 8192}});
    CompileOptions options;
    options.layers = true;
    std::string problem;
    const Script script = compile(plan, shapes, options, problem);
    ASSERT_EQ(problem, "");
    EXPECT_TRUE(script.layers);
    EXPECT_EQ(script.shadow_bytes, 0U);
    expect_sends_in_order(plan, script);
    const auto launches = [&](std::uint32_t b) {
        return script.action(0, b).launch_end - script.action(0, b).launch;
    };
    EXPECT_EQ(launches(0), 1U);
    EXPECT_EQ(launches(1), 0U);  // waits for bucket 2
    EXPECT_EQ(launches(2), 3U);
}

TEST(Compile, APlanForLayersIsRefusedWhereTheyDoNotWait) {
    const auto shapes = floats({1024});
    Plan plan = layer_plan(shapes, {{.bucket = 0, .begin = 0, .end = 4096}});
    CompileOptions options;
    std::string problem;
    compile(plan, shapes, options, problem);
    EXPECT_NE(problem.find("whose layers wait"), std::string::npos) << problem;
    options.layers = true;
    compile(plan, shapes, options, problem);
    EXPECT_EQ(problem, "");
    plan.deliveries[0].generation = {-1, 1};
    plan.transfers[0].generation = {-1, 1};
    compile(plan, shapes, options, problem);
    EXPECT_NE(problem.find("neither delays nor merges"), std::string::npos) << problem;
}

TEST(Compile, AWholeBucketOnTheFirstLaneIsForwarded) {
    const auto shapes = floats({1024, 4096});
    const Plan plan = uniform_plan(bytes_of(shapes), 1, 0, {{1, 0}});
    CompileOptions options;
    std::string problem;
    Script script = compile(plan, shapes, options, problem);
    EXPECT_EQ(problem, "");
    EXPECT_TRUE(script.forwards_all());
    EXPECT_EQ(script.shadow_bytes, 0U);
    options.forward_lane = kNoLane;
    EXPECT_FALSE(compile(plan, shapes, options, problem).forwards_all());
}

TEST(Compile, MemoryIsTheFewestSlots) {
    const auto shapes = floats({1024});
    CompileOptions options;
    options.max_delay = 2;
    options.max_merge = 4;
    std::string problem;
    const auto slots = [&](std::uint32_t merge, std::uint32_t delay, std::uint32_t history) {
        options.history = history;
        return compile(uniform_plan(bytes_of(shapes), merge, delay), shapes, options, problem)
            .slots.size();
    };
    EXPECT_EQ(slots(1, 0, 0), 0U);
    EXPECT_EQ(slots(1, 1, 0), 2U);
    EXPECT_EQ(slots(1, 2, 0), 3U);
    EXPECT_EQ(slots(2, 0, 0), 1U);
    EXPECT_EQ(slots(4, 0, 0), 1U);
    EXPECT_EQ(slots(2, 1, 0), 2U);
    EXPECT_EQ(slots(1, 1, 1), 3U);
    EXPECT_EQ(slots(1, 1, 2), 4U);
}

class Refused : public ::testing::Test {
protected:
    std::string why() {
        std::string problem;
        compile(plan, shapes, options, problem);
        return problem;
    }
    std::vector<Shape> shapes = floats({1024, 4096});
    Plan plan = uniform_plan(bytes_of(shapes), 2, 1, {{0.5, 0}, {1, 1}});
    CompileOptions options{.lanes = 2};
};

TEST_F(Refused, NothingWhenAllIsWell) {
    EXPECT_EQ(why(), "");
}
TEST_F(Refused, OtherBuckets) {
    shapes[1].count = 4095;
    EXPECT_NE(why().find("bucket 1 has 16380 bytes, in the plan 16384"), std::string::npos);
}
TEST_F(Refused, BeyondTheCaps) {
    options.max_delay = 0;
    EXPECT_NE(why().find("1 iterations late, the cap is 0"), std::string::npos);
    options.max_delay = 1;
    options.max_merge = 1;
    EXPECT_NE(why().find("merge 2 iterations, the cap is 1"), std::string::npos);
}
TEST_F(Refused, HalfPrecisionUnlessForced) {
    shapes[0] = {2048, DEFT_NCCL_FLOAT16, DEFT_NCCL_SUM};
    EXPECT_NE(why().find("bucket 0 is float16"), std::string::npos);
    options.delay_half = true;
    EXPECT_EQ(why(), "");
}
TEST_F(Refused, WhatIsNoSumOfFloats) {
    shapes[0].op = DEFT_NCCL_MAX;
    EXPECT_NE(why().find("no sum of floating-point"), std::string::npos);
    shapes[0] = {1024, DEFT_NCCL_INT32, DEFT_NCCL_SUM};
    EXPECT_NE(why().find("no sum of floating-point"), std::string::npos);
    shapes[0].op = 77;
    EXPECT_NE(why().find("operation of its communicator"), std::string::npos);
}
TEST_F(Refused, BytesNeverSent) {
    plan.transfers.pop_back();
    EXPECT_NE(why(), "");
}
TEST_F(Refused, BytesSentTwice) {
    plan.transfers.push_back(plan.transfers[0]);
    EXPECT_NE(why().find("twice or never"), std::string::npos);
}
TEST_F(Refused, GradientsDeliveredTwiceOrNever) {
    plan.deliveries.push_back(plan.deliveries[0]);
    EXPECT_NE(why().find("twice or never"), std::string::npos);
    plan.deliveries.resize(1);
    EXPECT_NE(why().find("twice or never"), std::string::npos);
}
TEST_F(Refused, ALaneThatIsNotThere) {
    options.lanes = 1;
    EXPECT_NE(why().find("link 1 of 1 lanes"), std::string::npos);
}
TEST_F(Refused, CutElements) {
    plan.transfers[0].end -= 2;
    EXPECT_NE(why().find("bad range"), std::string::npos);
}
TEST_F(Refused, TheFuture) {
    plan.deliveries[0].generation.first += 2;
    EXPECT_NE(why().find("before it exists"), std::string::npos);
}
TEST_F(Refused, ReduceScatter) {
    plan.transfers[0].operation = planner::Operation::ReduceScatter;
    EXPECT_NE(why().find("only where layers wait"), std::string::npos);
}

}  // namespace
}  // namespace deft::executor::test
