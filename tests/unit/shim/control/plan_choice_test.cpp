// SPDX-License-Identifier: Apache-2.0
// Which plan a measured job gets: within the caps, and over several networks.
#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "planner/model/measured_profile.h"
#include "shim/control/networks.h"
#include "shim/control/plan_choice.h"
#include "shim/control/reestimate.h"
#include "shim/control/split_plan.h"
#include "shim/settings/networks.h"

namespace deft::director {
namespace {

constexpr double kCompute = 0.1;             // seconds
constexpr std::uint64_t kBytes = 4'000'000;  // of each of eight buckets

// Eight buckets whose transfers take `coverage` times the compute.
planner::Profile job_of(double coverage) {
    planner::MeasuredJob job;
    job.ranks = 2;
    const auto exactly = [](double seconds) {
        return planner::Spread{seconds, seconds, seconds, 50};
    };
    for (int i = 0; i < 8; ++i) {
        job.buckets.push_back({kBytes, exactly(kCompute * (0.4 + 0.6 * (i + 1) / 8)),
                               exactly(kCompute * coverage / 8)});
    }
    job.compute = exactly(kCompute);
    job.iteration = exactly(kCompute * (1 + coverage));
    return planner::measured_profile(job);
}

// A network that is `times` as fast as the job's own.
planner::Link network(double coverage, double times) {
    planner::Link link;
    link.name = "other";
    link.cost.beta = kCompute * coverage / 8 / kBytes / times;
    return link;
}

planner::Plan plan_for(double coverage, const Settings& settings,
                       std::vector<planner::Link> lanes = {}) {
    if (!lanes.empty()) {
        lanes.insert(lanes.begin(), network(coverage, 1));
    }
    std::string note;
    return choose_plan(job_of(coverage), lanes, settings, note);
}

std::set<std::uint32_t> links_of_bucket(const planner::Plan& plan, std::uint32_t bucket) {
    std::set<std::uint32_t> links;
    for (const planner::Transfer& transfer : plan.transfers) {
        if (transfer.bucket == bucket) {
            links.insert(transfer.link);
        }
    }
    return links;
}

// A job that seems to compute for a tenth of the time it does.
planner::Profile guessed(const planner::Profile& job) {
    planner::Profile guess = job;
    guess.forward /= 10;
    guess.backward /= 10;
    for (planner::Bucket& bucket : guess.buckets) {
        bucket.ready /= 10;
        bucket.forward /= 10;
    }
    return guess;
}

Settings late_or_merged() {
    Settings settings;
    settings.mode = ShimMode::Deft;
    settings.max_delay = 1;
    settings.max_merge = 2;
    return settings;
}

TEST(Prediction, OfAPlanIsThatOfTheJobItIsAskedAbout) {
    std::string note;
    const planner::Profile thought = guessed(job_of(2));
    const planner::Plan plan = choose_plan(thought, {}, late_or_merged(), note);
    EXPECT_NEAR(predict(plan, thought, {}), plan.predicted.iteration, 1e-9);
    const planner::Plan better = choose_plan(job_of(2), {}, late_or_merged(), note);
    EXPECT_LE(better.predicted.iteration, predict(plan, job_of(2), {}) + 1e-9);
    EXPECT_GE(predict(plan, job_of(2), {}), plan.predicted.iteration);
}

// What is made of a plan for the job as it was guessed, if an iteration takes so long under it.
Reestimate second_look(const planner::Profile& job, double guess_to_truth) {
    std::string note;
    const planner::Plan plan = choose_plan(guessed(job), {}, late_or_merged(), note);
    const double guess = predict(plan, guessed(job), {});
    const double truth = predict(plan, job, {});
    const double took = guess + guess_to_truth * (truth - guess);
    Reestimate look = reestimate(plan, took, guessed(job), job, {}, late_or_merged());
    EXPECT_DOUBLE_EQ(look.thought, guess);
    EXPECT_DOUBLE_EQ(look.as_started, truth);
    return look;
}

// The guess sees more to send than there is, and merges always.
TEST(Late, HasMoreUpdatesAtTheSecondLook) {
    Settings settings = late_or_merged();
    settings.combined = true;
    const planner::Profile job = job_of(1.15);
    std::string note;
    const planner::Plan plan = choose_plan(guessed(job), {}, settings, note);
    ASSERT_NEAR(plan.predicted.updates, 0.5, 1e-9);
    const Reestimate look =
        reestimate(plan, predict(plan, job, {}), guessed(job), job, {}, settings);
    ASSERT_TRUE(look.better) << look.note;
    EXPECT_GT(look.better->predicted.updates, 0.6);
    EXPECT_LE(look.better->predicted.iteration, 1.005 * predict(plan, job, {}));
}

Settings waiting_layers(const char* policy = "") {
    Settings settings;
    settings.mode = ShimMode::Exact;
    settings.layers = true;
    settings.policy = policy;
    return settings;
}

TEST(Layers, GetAnOrderWhereTheyWaitForThemselvesAndNoneElse) {
    for (const char* policy : {"", "best", "bytescheduler", "us-byte"}) {
        const planner::Plan plan = plan_for(1, waiting_layers(policy));
        EXPECT_EQ(plan.barrier, planner::Barrier::Layer) << policy;
        EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use) << policy;
        if (std::string_view(policy) != "us-byte") {  // its blocks cost starts, which are not known
            EXPECT_LT(plan.predicted.iteration, 0.9 * plan.predicted.baseline) << policy;
        }
        EXPECT_FALSE(plan.predicted.late_or_merged()) << policy;
        for (const planner::Transfer& transfer : plan.transfers) {
            EXPECT_EQ(transfer.operation, planner::Operation::AllReduce) << policy;
        }
        Settings settings = waiting_layers(policy);
        settings.layers = false;
        const planner::Plan without = plan_for(1, settings);
        EXPECT_EQ(without.barrier, planner::Barrier::Update) << policy;
        EXPECT_EQ(without.predicted.verdict, planner::Verdict::Keep) << policy;
    }
}

// The last bucket, which forward needs first, is not sent last.
TEST(Layers, WhatForwardNeedsFirstOvertakes) {
    const planner::Plan plan = plan_for(1, waiting_layers("bytescheduler"));
    ASSERT_FALSE(plan.transfers.empty());
    EXPECT_EQ(plan.transfers.front().bucket, 0U);
    EXPECT_LT(plan.transfers.back().bucket, 7U);
}

// Of the job's sums, all of one size, nothing is known of smaller ones. A lane that was measured
// tells what a part takes to start, and sums are cut.
TEST(Layers, HaveTheirSumsCutWhereALaneWasMeasured) {
    const planner::Plan whole = plan_for(1.3, waiting_layers());
    EXPECT_LE(whole.transfers.size(), 8U);
    Settings settings = waiting_layers();
    settings.lane_start = 1e-4;
    settings.lane_per_byte = 1;  // beside the job's own transfers: those are faster
    const planner::Plan cut = plan_for(1.3, settings);
    EXPECT_GT(cut.transfers.size(), 8U);
    EXPECT_LT(cut.predicted.iteration, 0.99 * whole.predicted.iteration);
    EXPECT_LT(cut.predicted.iteration, 1.02 * cut.predicted.bound);
    settings.lane_start = kCompute;  // more than a sum itself: not believed
    EXPECT_LT(plan_for(1.3, settings).predicted.iteration, 2 * whole.predicted.iteration);
    settings.layers = false;
    EXPECT_EQ(plan_for(1.3, settings).predicted.baseline, plan_for(1.3, {}).predicted.baseline);
}

TEST(Layers, OfMoreThanTwoRanksHaveTheirSumsWhole) {
    for (const char* policy : {"", "bytescheduler"}) {
        Settings settings = waiting_layers(policy);
        settings.cuts = false;
        const planner::Plan plan = plan_for(1, settings);
        EXPECT_LT(plan.predicted.iteration, 0.95 * plan.predicted.baseline) << policy;
        EXPECT_EQ(plan.transfers.size(), 8U) << policy;
        for (const planner::Transfer& transfer : plan.transfers) {
            EXPECT_EQ(transfer.bytes(), kBytes) << policy;
        }
    }
}

TEST(Layers, GetANamedOrderThoughItGainsNothing) {
    EXPECT_EQ(plan_for(0.1, waiting_layers("us-byte")).predicted.verdict, planner::Verdict::Use);
    const planner::Plan best = plan_for(0.1, waiting_layers("best"));
    EXPECT_EQ(best.predicted.verdict, planner::Verdict::Use);
    EXPECT_EQ(best.barrier, planner::Barrier::Layer);
    EXPECT_EQ(plan_for(0.1, waiting_layers()).predicted.verdict, planner::Verdict::Keep);
    Settings trial = waiting_layers();
    trial.trial = true;
    const planner::Plan tried = plan_for(0.1, trial);
    EXPECT_EQ(tried.predicted.verdict, planner::Verdict::Use);
    EXPECT_EQ(tried.barrier, planner::Barrier::Layer);
}

TEST(Reestimate, APlanMadeFromAWrongGuessIsReplaced) {
    // Little to send: the guess sees transfers that nothing hides, and merges them.
    const planner::Profile job = job_of(0.7);
    const Reestimate look = second_look(job, 1);
    EXPECT_TRUE(look.believed);
    ASSERT_TRUE(look.better) << look.as_started;
    EXPECT_LT(look.better->predicted.iteration, 0.98 * look.as_started);
    EXPECT_NE(look.note, "");
}

TEST(Reestimate, WhatExplainsTheTimeWorseIsNotBelieved) {
    const Reestimate look = second_look(job_of(0.7), 0.4);
    EXPECT_FALSE(look.believed);
    EXPECT_FALSE(look.better);
}

TEST(Reestimate, APlanThatIsTheBestAnywayStays) {
    const planner::Profile job = job_of(2);
    std::string note;
    const planner::Plan plan = choose_plan(job, {}, late_or_merged(), note);
    const Reestimate look =
        reestimate(plan, plan.predicted.iteration, guessed(job), job, {}, late_or_merged());
    EXPECT_TRUE(look.believed);
    EXPECT_FALSE(look.better);
}

TEST(Caps, DelayAndMergingAreCombinedOnlyWhereTheOperatorSetsBoth) {
    Settings settings;
    settings.mode = ShimMode::Deft;
    settings.max_delay = 1;
    settings.max_merge = 2;
    for (const double coverage : {0.5, 1.0, 1.5, 2.0, 3.0}) {
        for (const bool lanes : {false, true}) {
            const planner::Prediction p =
                (lanes ? plan_for(coverage, settings, {network(coverage, 0.5)})
                       : plan_for(coverage, settings))
                    .predicted;
            EXPECT_TRUE(p.max_delay == 0 || p.max_merge == 1) << coverage;
            EXPECT_LT(p.iteration, p.baseline) << coverage;
        }
    }
    settings.combined = true;
    const planner::Prediction both = plan_for(2.0, settings).predicted;
    EXPECT_EQ(both.max_delay, 1U);
    EXPECT_EQ(both.max_merge, 2U);
}

// Half the buckets in one update and half in the next would be faster here.
TEST(Generations, AreCompleteInEveryUpdate) {
    Settings settings = late_or_merged();
    for (const std::uint32_t delay : {0U, 1U}) {
        settings.max_delay = delay;
        for (const double coverage : {0.8, 1.5, 2.0, 3.0}) {
            const planner::Plan plan = plan_for(coverage, settings);
            EXPECT_TRUE(plan.complete_generations()) << coverage;
            EXPECT_GE(plan.predicted.iteration, plan.predicted.bound * (1 - 1e-9)) << coverage;
            if (delay == 0 && coverage > 1) {
                EXPECT_EQ(plan.predicted.max_merge, 2U) << coverage;
                EXPECT_LT(plan.predicted.iteration, 1.05 * plan.predicted.bound) << coverage;
            }
        }
    }
    const double whole = plan_for(2, settings).predicted.iteration;
    settings.turns = true;
    EXPECT_FALSE(plan_for(2, settings).complete_generations());
    EXPECT_LT(plan_for(2, settings).predicted.iteration, 0.9 * whole);
    settings.forced_merge = 2;
    EXPECT_FALSE(plan_for(2, settings).complete_generations());
    settings.forced_delay = 1;
    EXPECT_TRUE(plan_for(2, settings).complete_generations());
    settings = late_or_merged();
    settings.mode = ShimMode::Covap;
    EXPECT_FALSE(plan_for(2, settings).complete_generations());
}

// What is late costs progress, so no more of it is than the time needs.
TEST(Late, IsOnlyWhatBackwardEndsWith) {
    Settings settings = late_or_merged();
    settings.max_merge = 1;
    EXPECT_EQ(plan_for(0.8, settings).predicted.late, 1) << "when calls are ready is a guess yet";
    settings.mixed_ages = true;
    const planner::Plan plan = plan_for(0.8, settings);
    EXPECT_EQ(plan.origin, "mixed-ages");
    EXPECT_NEAR(plan.predicted.iteration, kCompute, 0.01 * kCompute);
    EXPECT_GT(plan.predicted.late, 0);
    EXPECT_LT(plan.predicted.late, 0.5);
    EXPECT_EQ(plan.predicted.max_delay, 1U);
    EXPECT_TRUE(plan.whole_updates());
    settings.forced_merge = 1;
    settings.forced_delay = 1;
    EXPECT_EQ(plan_for(0.8, settings).predicted.late, 1);
    settings.forced_tail = true;
    EXPECT_NEAR(plan_for(0.8, settings).predicted.late, plan.predicted.late, 1e-9);
}

// Over two networks late ones would wait in the hook for fresh ones.
TEST(Late, IsEverythingOverSeveralNetworks) {
    Settings settings = late_or_merged();
    settings.max_merge = 1;
    settings.mixed_ages = true;
    const double late = plan_for(1.6, settings, {network(1.6, 1)}).predicted.late;
    EXPECT_TRUE(late == 0 || late == 1) << late;
}

// A second look finds a plan that is as fast with less of it late, whichever profile it believes.
TEST(Late, BecomesLessAtTheSecondLook) {
    Settings settings = late_or_merged();
    settings.max_merge = 1;
    const planner::Profile job = job_of(0.8);
    std::string note;
    const planner::Plan plan = choose_plan(job, {}, settings, note);
    settings.mixed_ages = true;
    for (const bool guess_was_right : {false, true}) {
        const planner::Profile thought = guess_was_right ? job : guessed(job);
        const planner::Profile started = guess_was_right ? guessed(job) : job;
        const Reestimate look =
            reestimate(plan, predict(plan, job, {}), thought, started, {}, settings);
        EXPECT_EQ(look.believed, !guess_was_right);
        ASSERT_TRUE(look.better) << look.note;
        EXPECT_LT(look.better->predicted.late, 0.5);
        EXPECT_LE(look.better->predicted.iteration, 1.005 * plan.predicted.iteration);
        EXPECT_NE(look.note.find("of the bytes are late"), std::string::npos) << look.note;
    }
}

// An executor carries out each call by itself: what buckets fused into one message would save is
// nothing it can have. Here nearly everything would: transfers take nearly as long whatever their
// size.
TEST(Calls, AreNeverFusedIntoOneMessage) {
    planner::Profile profile = job_of(1.2);
    for (std::size_t i = 0; i < profile.size(); ++i) {
        profile.buckets[i].bytes = kBytes + 100'000 * i;
        profile.buckets[i].transfer.median *= 1 + 0.001 * static_cast<double>(i);
    }
    for (const ShimMode mode : {ShimMode::Exact, ShimMode::Deft}) {
        Settings settings = late_or_merged();
        settings.mode = mode;
        settings.max_delay = mode == ShimMode::Exact ? 0 : 1;
        settings.max_merge = mode == ShimMode::Exact ? 1 : 2;
        std::string note;
        const planner::Plan plan = choose_plan(profile, {}, settings, note);
        std::set<std::uint32_t> messages;
        for (const planner::Transfer& transfer : plan.transfers) {
            EXPECT_TRUE(messages.insert(transfer.message).second) << note;
        }
        if (mode == ShimMode::Exact) {
            EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Keep) << note;
        } else {
            EXPECT_GT(plan.predicted.max_delay + plan.predicted.max_merge, 1U) << note;
        }
    }
}

TEST(Networks, ExactCutsEveryBucketOverAll) {
    Settings settings;
    settings.mode = ShimMode::Exact;
    const planner::Plan plan = plan_for(1.5, settings, {network(1.5, 1)});
    EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use);
    EXPECT_EQ(plan.predicted.max_delay, 0U);
    EXPECT_EQ(plan.predicted.max_merge, 1U);
    for (std::uint32_t bucket = 0; bucket < 8; ++bucket) {
        EXPECT_EQ(links_of_bucket(plan, bucket), (std::set<std::uint32_t>{0, 1})) << bucket;
    }
    // Half the time of the transfers, and compute that nothing can hide.
    EXPECT_NEAR(plan.predicted.iteration, kCompute * (1 - 0.6 * 7 / 8 + 1.5 / 2), 0.003);
    EXPECT_NEAR(plan.predicted.baseline, kCompute * (1 - 0.6 * 7 / 8 + 1.5), 0.003);
}

// 0.8 MB of every 4 MB belong on it.
TEST(Networks, ASlowOneGetsItsPartOfEveryBucketToo) {
    Settings settings;
    settings.mode = ShimMode::Exact;
    const planner::Plan plan = plan_for(1.5, settings, {network(1.5, 0.25)});
    for (std::uint32_t bucket = 0; bucket < 8; ++bucket) {
        EXPECT_EQ(links_of_bucket(plan, bucket), (std::set<std::uint32_t>{0, 1})) << bucket;
    }
    EXPECT_NEAR(plan.predicted.iteration, kCompute * (1 - 0.6 * 7 / 8 + 1.5 / 1.25), 0.003);
}

TEST(Networks, OneThatHelpsNothingIsLeftAlone) {
    Settings settings;
    settings.mode = ShimMode::Exact;
    EXPECT_EQ(plan_for(1.5, settings, {network(1.5, 0.01)}).predicted.verdict,
              planner::Verdict::Keep);
}

// Whole buckets on different networks wait for each other in the stream of the calls.
TEST(Networks, WhatIsNotLateIsNeverSpreadByWholeBuckets) {
    Settings settings;
    settings.mode = ShimMode::Deft;
    settings.max_merge = 2;
    for (const double coverage : {0.8, 1.2, 1.6, 2.4, 4.0}) {
        const planner::Plan plan = plan_for(coverage, settings, {network(coverage, 0.6)});
        for (std::uint32_t bucket = 0; bucket < 8; ++bucket) {
            EXPECT_EQ(links_of_bucket(plan, bucket).size(), 2U) << coverage;
        }
    }
}

TEST(Networks, CovapUsesThemToo) {
    Settings settings;
    settings.mode = ShimMode::Covap;
    settings.max_merge = 2;
    const planner::Plan plan = plan_for(3.0, settings, {network(3.0, 1)});
    EXPECT_EQ(plan.links.size(), 2U);
    EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use);
    EXPECT_EQ(links_of_bucket(plan, 0), (std::set<std::uint32_t>{0, 1}));
}

// A lane that is warmed up on one rank and a transfer of the job on another must not wait for each
// other.
TEST(Networks, NoLanesWhereNcclRunsOneCommunicatorAfterTheOther) {
    const auto good = [](int nccl, int driver, const char* order, const char* race) {
        return why_no_lanes({nccl, driver, order, race}).empty();
    };
    EXPECT_TRUE(good(22809, 13000, nullptr, nullptr));
    EXPECT_TRUE(good(22809, 13000, "0", nullptr));
    EXPECT_TRUE(good(22508, 12000, "1", nullptr)) << "it does not know the variable";
    EXPECT_TRUE(good(22800, 12030, "1", "0"));
    EXPECT_FALSE(good(22800, 12030, "1", nullptr));
    EXPECT_FALSE(good(22800, 12030, "1", "1"));
    EXPECT_FALSE(good(22800, 12030, "2", "1"));
    EXPECT_FALSE(good(22800, 12020, "1", "0"));
    EXPECT_FALSE(good(22800, 0, "1", "0")) << "no driver was found";
    EXPECT_FALSE(good(22707, 13000, "1", "0"));
    EXPECT_FALSE(good(22600, 13000, "1", "0"));
}

TEST(Networks, NoLanesWhereAllStreamsShareOneQueue) {
    const auto why = [](const char* connections) {
        Surroundings around{22809, 13000};
        around.max_connections = connections;
        return why_no_lanes(around);
    };
    EXPECT_EQ(why(nullptr), "");
    for (const char* good : {"", "0", "2", "8", "32", "10"}) {
        EXPECT_EQ(why(good), "") << good;
    }
    EXPECT_NE(why("1").find("CUDA_DEVICE_MAX_CONNECTIONS=1"), std::string::npos);
    EXPECT_NE(why("01"), "");
}

TEST(Networks, NoLanesThatAreNonblocking) {
    const auto why = [](int nccl, const char* blocking) {
        Surroundings around{nccl, 13000};
        around.comm_blocking = blocking;
        return why_no_lanes(around);
    };
    EXPECT_EQ(why(22809, nullptr), "");
    EXPECT_EQ(why(22809, "1"), "");
    EXPECT_EQ(why(21304, "0"), "") << "it does not know the variable";
    EXPECT_NE(why(21403, "0").find("NCCL_COMM_BLOCKING=0"), std::string::npos);
}

TEST(Networks, AreNamedAsNcclNamesThem) {
    using Names = std::vector<std::string>;
    const auto parsed = [](const char* text) {
        Names names{"unchanged"};
        std::string problem;
        const bool good = executor::parse_networks(text, names, problem);
        EXPECT_EQ(good, problem.empty()) << text;
        EXPECT_TRUE(good || names.empty()) << text;
        return good ? names : Names{"wrong"};
    };
    EXPECT_EQ(parsed(""), Names());
    EXPECT_EQ(parsed("IB"), Names{"IB"});
    EXPECT_EQ(parsed("IB,Socket,deft"), (Names{"IB", "Socket", "deft"}));
    EXPECT_EQ(parsed(" IB ,\tSocket"), (Names{"IB", "Socket"})) << "as people write lists";
    for (const char* text :
         {",", "IB,", ",IB", "IB,,Socket", "IB,ib", "IB Socket", "a,b,c,d,e", "\t",
          "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg"}) {
        EXPECT_EQ(parsed(text), Names{"wrong"}) << text;
    }
}

TEST(Networks, DeftsLinksStandBesideNcclsIb) {
    using List = std::vector<std::string>;
    EXPECT_EQ(networks_beside({}, nullptr, true), List{});
    EXPECT_EQ(networks_beside({"IB"}, nullptr, true), List{"IB"});
    EXPECT_EQ(networks_beside({}, "IB", true), List{"deft"});
    EXPECT_EQ(networks_beside({}, "IB", false), List{});
    EXPECT_EQ(networks_beside({"ib"}, "IB", true), List{"deft"});
    EXPECT_EQ(networks_beside({"IB", "deft"}, "IB", true), List{"deft"});
    EXPECT_EQ(networks_beside({"IB", "Socket"}, "IB", true), (List{"deft", "Socket"}));
    EXPECT_EQ(networks_beside({"Socket"}, "IB", true), List{"Socket"});
    EXPECT_EQ(networks_beside({"Socket", "IB"}, "Socket", true), List{"IB"});
    EXPECT_EQ(networks_beside({}, "Socket", true), List{});
}

std::vector<std::uint64_t> bytes_by_link(const planner::Plan& plan, std::size_t links) {
    std::vector<std::uint64_t> bytes(links);
    for (const planner::Transfer& transfer : plan.transfers) {
        bytes.at(transfer.link) += transfer.bytes();
    }
    return bytes;
}

// An all-reduce on two ranks moves as many bytes as the parts of a gathered layer have.
planner::Plan split(Series series, planner::Profile job, double times, std::string& note,
                    bool named = false) {
    planner::Link own = network(1, 1);
    own.name = "own";
    return choose_split_plan(series, job, {own, network(1, times)}, named, note);
}

TEST(Split, CutsEveryCallInProportion) {
    std::string note;
    for (const Series series : {Series::Shards, Series::Sums}) {
        const planner::Plan plan = split(series, job_of(1), 0.5, note);
        EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use) << note;
        EXPECT_FALSE(plan.predicted.late_or_merged());
        const std::vector<std::uint64_t> bytes = bytes_by_link(plan, 2);
        EXPECT_EQ(bytes[0] + bytes[1], 8 * kBytes);
        EXPECT_NEAR(static_cast<double>(bytes[0]) / static_cast<double>(bytes[1]), 2, 0.01);
        EXPECT_NEAR(plan.predicted.iteration, plan.predicted.baseline - kCompute / 3, 1e-3);
    }
}

// Of four ranks each sends three parts of a shard, where lanes were measured with sums.
TEST(Split, KnowsWhatAShardMoves) {
    planner::Profile job = job_of(1);
    job.ranks = 4;
    std::string note;
    const std::vector<std::uint64_t> bytes = bytes_by_link(split(Series::Shards, job, 1, note), 2);
    EXPECT_NEAR(static_cast<double>(bytes[0]) / static_cast<double>(bytes[1]), 2, 0.01);
}

TEST(Split, NeedsAnotherNetworkThatHelps) {
    std::string note;
    EXPECT_EQ(choose_split_plan(Series::Shards, job_of(1), {}, false, note).predicted.verdict,
              planner::Verdict::Keep);
    EXPECT_EQ(choose_split_plan(Series::Shards, job_of(1), {}, true, note).predicted.verdict,
              planner::Verdict::Keep);
    EXPECT_EQ(split(Series::Shards, job_of(1), 0.01, note).predicted.verdict,
              planner::Verdict::Keep);
    EXPECT_EQ(split(Series::Shards, job_of(1), 0.01, note, true).predicted.verdict,
              planner::Verdict::Use)
        << "the operator insists";
}

// The calls of a nonblocking communicator are never timed.
TEST(Split, GoesByLanesWhereNothingWasTimed) {
    planner::Profile job = job_of(1);
    for (planner::Bucket& bucket : job.buckets) {
        bucket.transfer = {};
    }
    std::string note;
    const std::vector<std::uint64_t> bytes = bytes_by_link(split(Series::Sums, job, 0.5, note), 2);
    EXPECT_NEAR(static_cast<double>(bytes[0]) / static_cast<double>(bytes[1]), 2, 0.01);
}

}  // namespace
}  // namespace deft::director
