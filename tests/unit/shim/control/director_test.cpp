// SPDX-License-Identifier: Apache-2.0
// What directors say to each other, and how two ranks' views of one cycle are brought together.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <string>

#include "base/config.h"
#include "base/hash.h"
#include "shim/control/communicator_info.h"
#include "shim/control/guard_settings.h"
#include "shim/control/job_view.h"
#include "shim/control/message.h"

#include "shim/settings/optimizer.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

TEST(CommunicatorInfo, GivesALaneTwiceTheTimeThatTheCommunicatorTook) {
    using namespace std::chrono_literals;
    constexpr std::int64_t kSecond = 1'000'000'000;
    CommunicatorInfo info;
    EXPECT_EQ(info.lane_deadline(), 1min) << "it was not seen";
    const std::pair<std::int64_t, std::chrono::seconds> cases[] = {
        {5, 1min}, {100, 200s}, {3'600, 10min}};
    for (const auto& [took, deadline] : cases) {
        info.made_in_ns = took * kSecond;
        EXPECT_EQ(info.lane_deadline(), deadline) << took;
        EXPECT_EQ(info.stage_deadline(), 3 * deadline) << took;
    }
}

Order full_order() {
    Order order;
    order.kind = Kind::Open;
    order.stage = 7;
    order.signature = 0x1234;
    order.plan = "{\"x\": 1}";
    order.prediction = "lead:0.9";
    order.iterations = 150;
    order.ordinal = 88;
    order.begin = 102;
    order.keep = 3;
    order.patience_ms = 6000;
    order.lanes.resize(2);
    order.lanes[1].internal[5] = 42;
    return order;
}

TEST(Message, TheKillSwitchTravels) {
    for (const bool on : {true, false}) {
        std::vector<std::byte> bytes = encode(Halted{on});
        Halted halted{!on};
        Staged staged;
        Pressed pressed;
        ASSERT_TRUE(decode(bytes, halted));
        EXPECT_EQ(halted.on, on);
        EXPECT_FALSE(decode(bytes, staged));
        EXPECT_FALSE(decode(bytes, pressed));
        bytes.back() = std::byte{2};
        EXPECT_FALSE(decode(bytes, halted));
        bytes.pop_back();
        EXPECT_FALSE(decode(bytes, halted));
    }
}

TEST(Message, OrderSurvivesTheWire) {
    const Order order = full_order();
    Order back;
    ASSERT_TRUE(decode(encode(order), back));
    EXPECT_EQ(back.kind, Kind::Open);
    EXPECT_EQ(back.stage, 7U);
    EXPECT_EQ(back.signature, 0x1234U);
    EXPECT_EQ(back.plan, order.plan);
    EXPECT_EQ(back.prediction, "lead:0.9");
    EXPECT_EQ(back.iterations, 150U);
    EXPECT_EQ(back.ordinal, 88U);
    EXPECT_EQ(back.begin, 102U);
    EXPECT_EQ(back.keep, 3U);
    EXPECT_EQ(back.patience_ms, 6000U);
    ASSERT_EQ(back.lanes.size(), 2U);
    EXPECT_EQ(back.lanes[1].internal[5], 42);
}

TEST(Message, EveryKindOfOrderIsKnown) {
    for (const Kind kind : {Kind::Stage, Kind::Arm, Kind::Forward, Kind::Open, Kind::Drop,
                            Kind::Discard, Kind::Close, Kind::Rehearse}) {
        Order order;
        order.kind = kind;
        Order back;
        ASSERT_TRUE(decode(encode(order), back));
        EXPECT_EQ(back.kind, kind);
    }
}

// Three alike and one that is not: only the calls before tell where an iteration begins.
TEST(Message, AnswerSurvivesTheWire) {
    Staged staged{9, 77, Step::Refused, true, "why", true};
    Staged back;
    ASSERT_TRUE(decode(encode(staged), back));
    EXPECT_EQ(back.stage, 9U);
    EXPECT_EQ(back.ordinal, 77U);
    EXPECT_EQ(back.step, Step::Refused);
    EXPECT_TRUE(back.may_pass);
    EXPECT_TRUE(back.timed_out);
    EXPECT_EQ(back.reason, "why");
}

// Ranks of two builds of one release read each other's messages.
TEST(Message, TheBytesOnTheWireStay) {
    const std::string staged = std::string("S\x09\x09\0\0\0\0\0\0\0", 10) +
                               std::string("M\0\0\0\0\0\0\0", 8) + std::string("\0\x01\x01", 3) +
                               std::string("\x03\0\0\0\0\0\0\0why", 11);
    const std::vector<std::byte> bytes = encode(Staged{9, 77, Step::Refused, true, "why", true});
    ASSERT_EQ(bytes.size(), staged.size());
    EXPECT_EQ(std::memcmp(bytes.data(), staged.data(), staged.size()), 0);
    const std::vector<std::byte> order = encode(full_order());
    EXPECT_EQ(order.size(), 348U);
    EXPECT_EQ(fnv64(order), 0x21bc01423f3df0e6U);  // of the same bytes, written by hand
}

TEST(Message, NothingShorterLongerOrDamagedIsTaken) {
    const std::vector<std::byte> order = encode(full_order());
    const std::vector<std::byte> staged = encode(Staged{1, 2, Step::Ready, false, "x"});
    Order order_back;
    Staged staged_back;
    for (std::size_t size = 0; size < order.size(); ++size) {
        EXPECT_FALSE(decode(std::span(order).first(size), order_back)) << size;
    }
    for (std::size_t size = 0; size < staged.size(); ++size) {
        EXPECT_FALSE(decode(std::span(staged).first(size), staged_back)) << size;
    }
    auto longer = order;
    longer.push_back({});
    EXPECT_FALSE(decode(longer, order_back));
    auto unknown = order;
    unknown[2] = std::byte{99};  // the kind
    EXPECT_FALSE(decode(unknown, order_back));
    EXPECT_FALSE(decode(staged, order_back));
}

TEST(Message, AProofIsNoLongerThanWhatIsSaidOfIt) {
    Proof proof;
    proof.who = "0.1.0";
    proof.why = std::string(1000, 'x');
    Proof back;
    ASSERT_TRUE(decode(encode(proof), back));
    EXPECT_EQ(back.who, proof.who);
    EXPECT_EQ(back.why, proof.why.substr(0, 256));
    // Of a peer that says more nothing is kept: 8 bytes before each text are its size.
    std::vector<std::byte> longer = encode(proof);
    longer.push_back(std::byte{'x'});
    longer[4 + 8 + proof.who.size()] = std::byte{1};  // 257, little-endian
    EXPECT_FALSE(decode(longer, back));
}

CallRecord call(Function function, std::uint64_t count, std::uint64_t ordinal) {
    CallRecord record;
    record.function = function;
    record.count = count;
    record.type = DEFT_NCCL_FLOAT32;
    record.op = DEFT_NCCL_SUM;
    record.nranks = 4;
    record.device = 0;
    record.comm_serial = 1;
    record.ordinal = ordinal;
    return record;
}

// What is said of a job with this iteration.
JobView view_of(const std::vector<CallRecord>& iteration, std::uint32_t comm_serial = 1) {
    Track track;
    std::map<std::uint32_t, std::array<std::uint64_t, kSeries>> ordinals;
    for (int i = 0; i < 8; ++i) {
        for (CallRecord record : iteration) {
            // As the hooks number them.
            std::uint64_t& next =
                ordinals[record.comm_serial][static_cast<std::size_t>(series_of(record.function))];
            record.ordinal = is_numbered(record) ? next++ : CallRecord::kNoOrdinal;
            track.feed(record);
        }
    }
    return view_job(track, comm_serial, false);
}

CallRecord on(std::uint32_t comm_serial, CallRecord record) {
    record.comm_serial = comm_serial;
    return record;
}

// FSDP: parameters are gathered twice, gradients scattered.
const std::vector<CallRecord> kFsdp{
    call(Function::AllGather, 50'000, 0), call(Function::AllGather, 60'000, 0),
    call(Function::AllGather, 50'000, 0), call(Function::ReduceScatter, 60'000, 0),
    call(Function::ReduceScatter, 50'000, 0)};

TEST(View, LooksAtShardsInTheirOrder) {
    const JobView view = view_of(kFsdp);
    ASSERT_EQ(view.reason, "");
    EXPECT_EQ(view.series, Series::Shards);
    ASSERT_EQ(view.gradients.size(), kFsdp.size());
    for (std::size_t i = 0; i < kFsdp.size(); ++i) {
        EXPECT_EQ(view.gradients[i].function, kFsdp[i].function);
        EXPECT_EQ(view.gradients[i].count, kFsdp[i].count);
    }
    EXPECT_EQ(view.start % kFsdp.size(), 0U);
    std::vector<CallRecord> other = kFsdp;
    other[3].function = Function::AllGather;
    EXPECT_NE(view_of(other).signature, view.signature);
    EXPECT_EQ(view_of(other).series, Series::Shards) << "gathered alone, as when it is evaluated";
    // In groups too; and a norm that is summed over the same ranks is no call of a plan's.
    std::vector<CallRecord> grouped = kFsdp;
    grouped.push_back(call(Function::AllReduce, 1, 0));
    for (CallRecord& record : grouped) {
        record.group = 7;
    }
    EXPECT_EQ(view_of(grouped).reason, "");
    EXPECT_EQ(view_of(grouped).signature, view.signature);
}

TEST(View, JudgesEachCommunicatorByItself) {
    // HSDP: shards are summed over replicas.
    std::vector<CallRecord> hsdp;
    for (const CallRecord& record : kFsdp) {
        hsdp.push_back(record);
        if (record.function == Function::ReduceScatter) {
            hsdp.push_back(on(2, call(Function::AllReduce, record.count, 0)));
        }
    }
    const JobView shards = view_of(hsdp);
    EXPECT_EQ(shards.reason, "");
    EXPECT_EQ(shards.signature, view_of(kFsdp).signature);
    const JobView sums = view_of(hsdp, 2);
    EXPECT_EQ(sums.reason, "");
    EXPECT_EQ(sums.series, Series::Sums);
    EXPECT_EQ(sums.gradients.size(), 2U);
    ASSERT_NE(sums.beside, nullptr);
    EXPECT_NE(std::string(doubt_about(sums)).find("reduce-scatter"), std::string::npos);
    EXPECT_NE(std::string(doubt_about_proven(sums)).find("reduce-scatter"), std::string::npos);

    // Megatron: activations are reduced over the tensor-parallel group, gradients over another.
    const CallRecord bucket = call(Function::AllReduce, 100'000, 0);
    const std::vector<CallRecord> megatron{on(2, call(Function::AllReduce, 200'000, 0)), bucket};
    const JobView gradients = view_of(megatron);
    EXPECT_EQ(gradients.gradients.size(), 1U);
    ASSERT_NE(gradients.beside, nullptr);
    EXPECT_NE(std::string(doubt_about(gradients)).find("several communicators"), std::string::npos);
    EXPECT_EQ(view_of(megatron, 2).gradients.front().count, 200'000U);
    EXPECT_NE(view_of(megatron, 3).reason.find("another communicator"), std::string::npos);

    // What is gathered beside gradients of its own is none of them.
    const JobView gathers = view_of({call(Function::AllGather, 9'000, 0), bucket});
    EXPECT_EQ(gathers.series, Series::Sums);
    EXPECT_EQ(gathers.gradients.size(), 1U);
    EXPECT_EQ(gathers.beside, nullptr);
}

TEST(View, NamesWhatItLeavesAlone) {
    const CallRecord bucket = call(Function::AllReduce, 100'000, 0);
    const CallRecord other = call(Function::AllReduce, 200'000, 0);
    EXPECT_EQ(view_of({bucket, other}).reason, "");
    EXPECT_EQ(view_of({bucket, other}).gradients.size(), 2U);

    CallRecord grouped = bucket;
    grouped.group = 1;
    EXPECT_NE(view_of({grouped, other}).reason.find("groups"), std::string::npos);
    CallRecord scaled = bucket;
    scaled.op = DEFT_NCCL_NUM_OPS + 3;
    EXPECT_NE(view_of({scaled, other}).reason.find("of the job's own"), std::string::npos);
    CallRecord alone = bucket;
    alone.nranks = 1;
    EXPECT_NE(view_of({alone}).reason.find("one rank"), std::string::npos);
    // Metrics only: nothing of it is a gradient.
    EXPECT_NE(view_of({call(Function::AllReduce, 1, 0), call(Function::Broadcast, 100'000, 0)})
                  .reason.find("no"),
              std::string::npos);
}

// Of float32, in bytes.
std::vector<Gradient> sums(std::initializer_list<std::uint64_t> sizes) {
    std::vector<Gradient> gradients;
    for (const std::uint64_t size : sizes) {
        gradients.push_back({size / 4, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM});
    }
    return gradients;
}

TEST(View, DoubtsSmallSumsAmongMuchLargerOnes) {
    constexpr std::uint64_t kKiB = 1024;
    constexpr std::uint64_t kMiB = 1024 * kKiB;
    // The sums of SyncBatchNorm, from 128 to 2048 channels, between the buckets of DDP.
    EXPECT_NE(doubt_about(sums({16 * kKiB, kMiB, 4 * kKiB, 25 * kMiB, kKiB, 9 * kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({kMiB, 16 * kKiB, 25 * kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({kMiB, 25 * kMiB, kKiB, 100 * kKiB})), nullptr);
    // The remainder of DDP's parameters may have any size. It comes first where DDP looks for
    // unused parameters.
    EXPECT_EQ(doubt_about(sums({kMiB, 25 * kMiB, kKiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({kKiB, 25 * kMiB, 28 * kMiB, kMiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({kKiB, 25 * kMiB, 28 * kMiB, 150 * kMiB})), nullptr);
    // But SyncBatchNorm in a model's head comes before DDP's first bucket.
    EXPECT_NE(doubt_about(sums({2 * kKiB, kMiB, 25 * kMiB, 25 * kMiB, 9 * kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({2 * kKiB, kMiB, 25 * kMiB, 9 * kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({2 * kKiB, 2 * kMiB, kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({2 * kKiB, 2 * kMiB})), nullptr);
    // There is one of each module, and they look like SyncBatchNorm's.
    EXPECT_NE(doubt_about(sums({kMiB, 25 * kMiB, kKiB, 25 * kMiB, kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({kKiB, 25 * kMiB, kMiB, kKiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({kKiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({})), nullptr);
    // A small model has small buckets, none of them much smaller than the others.
    EXPECT_EQ(doubt_about(sums({26 * kKiB, 24 * kKiB, 64 * kKiB, 24 * kKiB, 2 * kKiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({4 * kKiB, 64 * kKiB, 40 * kKiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({40 * kKiB, 4 * kKiB, 64 * kKiB})), nullptr);
    EXPECT_NE(doubt_about(sums({40 * kKiB, 4 * kKiB - 4, 64 * kKiB})), nullptr);
    // Nor are all that are much smaller than the others small.
    EXPECT_EQ(doubt_about(sums({kMiB, 64 * kKiB, 25 * kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({kMiB, 64 * kKiB - 4, 25 * kMiB})), nullptr);
    // What is done about it is a matter of the mode.
    EXPECT_EQ(view_of({call(Function::AllReduce, 4096, 0), call(Function::AllReduce, 9'000'000, 0),
                       call(Function::AllReduce, 2'000'000, 0)})
                  .reason,
              "");
}

TEST(View, LeavesHalfPrecisionAsItIs) {
    std::vector<Gradient> gradients = sums({25 << 20, 25 << 20});
    EXPECT_EQ(doubt_about(gradients), nullptr);
    gradients[1].type = DEFT_NCCL_BFLOAT16;
    EXPECT_EQ(doubt_about(gradients), nullptr) << "it needs no scale";
    gradients[1].type = DEFT_NCCL_FLOAT16;
    EXPECT_NE(doubt_about(gradients), nullptr) << "one is enough";
}

TEST(View, DoubtsEqualGradientsInManyBuffers) {
    const auto in_buffers = [](std::uint64_t buffers) {
        std::vector<CallRecord> iteration;
        for (std::uint64_t i = 0; i < 8; ++i) {
            iteration.push_back(call(Function::AllReduce, 100'000, 0));
            iteration.back().buffer = 1 + i % buffers;
        }
        return view_of(iteration);
    };
    const JobView eight = in_buffers(8);
    EXPECT_EQ(eight.reason, "");
    EXPECT_EQ(eight.gradients.size(), 1U) << "it looks like eight iterations";
    EXPECT_FALSE(eight.whole);
    EXPECT_NE(doubt_about(eight), nullptr);
    EXPECT_EQ(doubt_about(eight.gradients), nullptr);
    EXPECT_TRUE(in_buffers(1).whole);
    EXPECT_EQ(doubt_about(in_buffers(1)), nullptr);
}

// With find_unused_parameters, behind the buckets.
TEST(View, DoubtsGradientsBesideAMapOfUsedParameters) {
    CallRecord first = call(Function::AllReduce, 1'000'000, 0);
    CallRecord second = call(Function::AllReduce, 2'000'000, 0);
    first.buffer = 1;
    second.buffer = 2;
    CallRecord map = call(Function::AllReduce, 60, 0);
    map.buffer = 3;
    map.in_place = true;
    map.type = DEFT_NCCL_INT32;
    const auto doubted = [&](const CallRecord& small) {
        const JobView view = view_of({first, second, small});
        EXPECT_EQ(view.reason, "");
        EXPECT_TRUE(view.whole);
        return doubt_about(view) != nullptr;
    };
    EXPECT_TRUE(doubted(map));
    const auto changed = [&map](auto change) {
        CallRecord other = map;
        change(other);
        return other;
    };
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.count = 1; }))) << "a metric or a flag";
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.type = DEFT_NCCL_INT64; })));
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.type = DEFT_NCCL_FLOAT32; })));
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.op = DEFT_NCCL_MAX; })));
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.in_place = false; })));
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.comm_serial = 2; }))) << "no bucket's";
}

TEST(View, TurnsToWhereTheLeaderBegins) {
    JobView view;
    view.gradients = {{3, 7, 0}, {1, 7, 0}, {2, 7, 0}};
    JobView leader;
    leader.gradients = {{1, 7, 0}, {2, 7, 0}, {3, 7, 0}};
    leader.signature = signature_of(leader.gradients);
    view.signature = signature_of(view.gradients);
    ASSERT_NE(view.signature, leader.signature);
    ASSERT_TRUE(rotate_to(view, leader.signature));
    EXPECT_EQ(view.gradients, leader.gradients);
    EXPECT_EQ(view.signature, leader.signature);
    const auto before = view.gradients;
    EXPECT_FALSE(rotate_to(view, 1));
    EXPECT_EQ(view.gradients, before);
    leader.gradients[1].in_place = false;
    EXPECT_FALSE(rotate_to(view, signature_of(leader.gradients)));
    view.gradients = {{2, 7, 0}, {1, 7, 0}, {3, 7, 0}};  // another order, no rotation
    view.signature = signature_of(view.gradients);
    EXPECT_FALSE(rotate_to(view, leader.signature));
}

executor::Optimizer optimizer(const char* text) {
    executor::Optimizer parsed;
    std::string problem;
    EXPECT_TRUE(executor::parse_optimizer(text, parsed, problem)) << problem;
    return parsed;
}

// The caps of a job that has set none of its own, or those named.
std::pair<std::uint32_t, std::uint32_t> caps(const char* name, bool delay = false,
                                             bool merge = false) {
    Settings settings;
    settings.max_delay = 1;
    settings.max_merge = 2;
    limit_by_optimizer(optimizer(name), delay, merge, settings);
    EXPECT_EQ(settings.combined, delay && merge);
    return {settings.max_delay, settings.max_merge};
}

TEST(Caps, AreThoseTheOptimizerBears) {
    using Caps = std::pair<std::uint32_t, std::uint32_t>;
    EXPECT_EQ(caps("adamw"), Caps(1, 2));
    EXPECT_EQ(caps("sgd:momentum=0.9"), Caps(1, 1));
    EXPECT_EQ(caps("nesterov:momentum=0.9"), Caps(0, 2));
    EXPECT_EQ(caps("sgd:momentum=0.9,nesterov=1", true, false), Caps(1, 2));
    EXPECT_EQ(caps("nesterov:momentum=0"), Caps(0, 1));
    for (const char* const name : {"nadam", "radam", "adamax", "lamb", "rmsprop:momentum=0.9"}) {
        EXPECT_EQ(caps(name), Caps(0, 1)) << name << ": not measured";
        EXPECT_EQ(caps(name, true, true), Caps(1, 2)) << name << ": set by the operator";
    }
    EXPECT_EQ(caps("sgd"), Caps(0, 1));
    EXPECT_EQ(caps("rmsprop"), Caps(0, 1));
    EXPECT_EQ(caps("unknown"), Caps(0, 1));
    EXPECT_EQ(caps("unknown", true, false), Caps(1, 1)) << "the delay was set, merging was not";
    EXPECT_EQ(caps("sgd", false, true), Caps(0, 2)) << "merging was set, the delay was not";
    EXPECT_EQ(caps("sgd:momentum=0.9", true, false), Caps(1, 1));
    EXPECT_EQ(caps("sgd", true, true), Caps(1, 2)) << "set by the operator";
    EXPECT_EQ(caps("adam", true, true), Caps(1, 2));
}

// What clipping does to a late or a merged gradient has not been measured either.
TEST(Caps, OfAJobThatClipsItsGradientsAllowNothingUnlessTheyAreSet) {
    for (const char* const name : {"adamw", "sgd:momentum=0.9", "nesterov:momentum=0.9"}) {
        executor::Optimizer clipped = optimizer(name);
        clipped.clipped = true;
        EXPECT_FALSE(clipped.same_kind(optimizer(name)));
        Settings settings;
        settings.max_delay = 1;
        settings.max_merge = 2;
        Settings own = settings;
        limit_by_optimizer(clipped, false, false, settings);
        EXPECT_EQ(settings.max_delay, 0U) << name;
        EXPECT_EQ(settings.max_merge, 1U) << name;
        EXPECT_TRUE(settings.unmeasured);
        EXPECT_NE(std::string(settings.limited).find("clips"), std::string::npos);
        limit_by_optimizer(clipped, true, true, own);
        EXPECT_EQ(own.max_delay, 1U);
        EXPECT_EQ(own.max_merge, 2U);
        EXPECT_FALSE(own.unmeasured);
    }
}

// Proof says nothing about the learning rate: the operator does, by a cap that allows something.
TEST(Caps, AreNamedByWhatAllowsSomething) {
    const auto named = [](std::vector<const char*> environment) {
        return cap_named(Config::load(environment, "/no/such/deft.conf"));
    };
    EXPECT_FALSE(named({}));
    EXPECT_TRUE(named({"DEFT_MAX_DELAY=1"}));
    EXPECT_TRUE(named({"DEFT_MAX_MERGE=2"}));
    EXPECT_TRUE(named({"DEFT_PLAN=delay1"}));
    EXPECT_FALSE(named({"DEFT_MAX_DELAY=0"}));
    EXPECT_FALSE(named({"DEFT_MAX_DELAY=0", "DEFT_MAX_MERGE=1"}));
}

// DEFT_LANE_CTAS limits the job's own network where it is set, to the default too: a host that sets
// it so and one that does not would make different communicators.
TEST(Settings, TermsTellWhetherTheOwnNetworkIsLimited) {
    const auto terms = [](std::vector<const char*> environment) {
        return Settings::terms(Config::load(environment, "/no/such/deft.conf"));
    };
    const std::string unset = terms({});
    EXPECT_NE(unset, terms({"DEFT_LANE_CTAS=4"}));
    EXPECT_EQ(unset, terms({"DEFT_LANE_CTAS="}));
    EXPECT_EQ(unset, terms({"DEFT_LOG=info"})) << "need not be equal";
}

TEST(Optimizer, TheGuardIsToldWhichIsSgdWithMomentum) {
    for (const auto& [name, heavy_ball] : {std::pair{"sgd:momentum=0.9", true},
                                           {"sgd:momentum=0.9,nesterov=1", false},
                                           {"sgd:momentum=0", false},
                                           {"adam", false},
                                           {"unknown", false}}) {
        ASSERT_TRUE(set_optimizer(name));
        EXPECT_EQ(guard_settings().heavy_ball, heavy_ball) << name;
    }
}

TEST(Optimizer, IsWhatTheJobSaysLast) {
    EXPECT_EQ(known_optimizer(), executor::Optimizer{});
    EXPECT_TRUE(set_optimizer("sgd:momentum=0,lr=0.5"));
    EXPECT_TRUE(known_optimizer().plain());
    EXPECT_EQ(known_optimizer().learning_rate, 0.5);
    EXPECT_FALSE(set_optimizer("nonsense"));
    EXPECT_TRUE(known_optimizer().plain()) << "what is not understood changes nothing";
    EXPECT_TRUE(set_optimizer("sgd:momentum=0.9"));
    EXPECT_FALSE(known_optimizer().plain());
    EXPECT_TRUE(set_optimizer("unknown"));
    EXPECT_EQ(known_optimizer(), executor::Optimizer{});
    EXPECT_TRUE(observe_optimizer("adam"));
    EXPECT_EQ(known_optimizer(), executor::Optimizer{}) << "the job's own word counts";
    EXPECT_TRUE(set_optimizer("adamw"));
    set_gradient_scaling(true);
    executor::Optimizer adam = known_optimizer();
    EXPECT_TRUE(adam.scaled);
    adam.scaled = false;
    EXPECT_FALSE(adam.same_kind(known_optimizer()));
    set_gradient_scaling(false);
    EXPECT_TRUE(adam.same_kind(known_optimizer()));
    set_gradient_clipping(true);
    EXPECT_TRUE(known_optimizer().clipped);
    EXPECT_FALSE(adam.same_kind(known_optimizer()));
    set_gradient_clipping(false);
}

TEST(Optimizer, IsOfTheSameKindWhateverASchedule) {
    EXPECT_TRUE(optimizer("sgd:momentum=0.95,lr=1").same_kind(optimizer("sgd:momentum=0.85")));
    EXPECT_FALSE(optimizer("sgd:momentum=0.9").same_kind(optimizer("sgd:momentum=0.5")));
    EXPECT_FALSE(optimizer("sgd:momentum=0.05").same_kind(optimizer("sgd")));
    EXPECT_FALSE(optimizer("adam").same_kind(optimizer("sgd:momentum=0.9")));
}

// Iterations of two gradients, the calls made an iteration ahead of the device: `transfer` ms each.
void iterate(Track& track, int times, std::int64_t transfer, std::int64_t& at) {
    constexpr std::int64_t kMs = 1'000'000;
    for (int i = 0; i < times; ++i) {
        const std::int64_t ready[] = {at + 10, at + 40};
        std::int64_t end = at;
        for (int bucket = 0; bucket < 2; ++bucket) {
            CallRecord record;
            record.function = Function::AllReduce;
            record.comm_serial = 1;
            record.count = bucket == 0 ? 50'000 : 70'000;
            record.type = DEFT_NCCL_FLOAT32;
            record.op = DEFT_NCCL_SUM;
            record.nranks = 2;
            record.stream = 7;
            record.issued_ns = (at - 100 + bucket) * kMs;
            static std::uint64_t ordinal = 0;
            record.ordinal = ordinal++;
            track.feed(record);
            if (!track.waiting().empty()) {
                TimedCall& call = track.waiting().back().call;
                call.timed = true;
                call.start = std::max(ready[bucket], end) * kMs;
                end = call.start / kMs + transfer;
                call.end = end * kMs;
            }
            track.settle();
        }
        at = end;
    }
}

TEST(View, ComputeThatWasGuessedIsCorrectedByTheEarliestStarts) {
    Track track;
    std::int64_t at = 1000;
    iterate(track, 20, 60, at);
    JobView view = view_job(track, 1, true);
    ASSERT_TRUE(view.measured);
    planner::Profile profile = view.profile;
    EXPECT_LT(profile.compute(), 0.02) << "the second was ready at 40 ms at the earliest";
    track.restart_profile();  // a plan has come into force, of period 2
    for (int i = 0; i < 3; ++i) {
        iterate(track, 1, 1, at);
        iterate(track, 1, 60, at);
    }
    EXPECT_FALSE(correct_by_starts(track, profile)) << "too few";
    for (int i = 0; i < 6; ++i) {
        iterate(track, 1, 1, at);
        iterate(track, 1, 60, at);
    }
    ASSERT_TRUE(correct_by_starts(track, profile));
    EXPECT_NEAR(profile.compute(), 0.04, 1e-9);
    ASSERT_EQ(profile.size(), 2U);
    EXPECT_NEAR(profile.forward + profile.buckets[0].ready, 0.01, 1e-9);
    EXPECT_NEAR(profile.buckets[0].transfer.median, 0.06, 1e-9) << "as it was measured before";
    // What lies behind the last gradient starts no call.
    profile.backward += 0.05;
    ASSERT_TRUE(correct_by_starts(track, profile));
    EXPECT_NEAR(profile.compute(), 0.09, 1e-9);
    // Of another job's buckets nothing is known.
    profile.buckets.pop_back();
    EXPECT_FALSE(correct_by_starts(track, profile));
    profile.buckets.clear();
    EXPECT_FALSE(correct_by_starts(track, profile));
}

// Under a plan for layers that wait for their own no call waits for the transfer before it.
TEST(View, BackwardThatWasGuessedIsCorrectedByCallsThatWaitForNoSum) {
    Track track;
    std::int64_t at = 1000;
    iterate(track, 20, 60, at);
    planner::Profile profile = view_job(track, 1, true).profile;
    const double iteration = profile.iteration.median;
    track.restart_profile();
    iterate(track, 5, 1, at);
    EXPECT_FALSE(correct_by_backward(track, profile)) << "too few";
    iterate(track, 10, 1, at);
    ASSERT_TRUE(correct_by_backward(track, profile));
    // The second took 30 ms for its 7 parts of the bytes, the first has 5.
    EXPECT_NEAR(profile.backward, 0.03 * 12 / 7, 1e-9);
    EXPECT_NEAR(profile.forward, profile.backward / 2, 1e-9);
    EXPECT_NEAR(profile.buckets[1].ready - profile.buckets[0].ready, 0.03, 1e-9);
    EXPECT_NEAR(profile.buckets[1].ready, profile.backward, 1e-9);
    EXPECT_NEAR(profile.buckets[0].transfer.median, 0.06, 1e-9) << "as it was measured before";
    EXPECT_DOUBLE_EQ(profile.iteration.median, iteration);
    EXPECT_EQ(profile.problem(), "");
    profile.buckets.pop_back();
    EXPECT_FALSE(correct_by_backward(track, profile)) << "another job's";
}

}  // namespace
}  // namespace deft::director
