// SPDX-License-Identifier: Apache-2.0
#include "shim/learning/track.h"

#include <gtest/gtest.h>
#include <cctype>
#include <string>

namespace deft {
namespace {

CallRecord all_reduce(std::uint64_t count, std::int64_t issued_ms = 0) {
    CallRecord record;
    record.comm_serial = 1;
    record.comm_hash = 42;
    record.count = count;
    record.type = DEFT_NCCL_FLOAT32;
    record.op = DEFT_NCCL_SUM;
    record.in_place = true;
    record.nranks = 2;
    record.device = 0;
    record.issued_ns = issued_ms * 1'000'000;
    return record;
}

TEST(Key, DistinguishesWhatABucketIs) {
    const CallRecord call = all_reduce(1000);
    const auto differs = [&call](auto change) {
        CallRecord other = call;
        change(other);
        return key_of(other) != key_of(call);
    };
    EXPECT_TRUE(differs([](CallRecord& c) { c.count = 1001; }));
    EXPECT_TRUE(differs([](CallRecord& c) { c.type = DEFT_NCCL_BFLOAT16; }));
    EXPECT_TRUE(differs([](CallRecord& c) { c.op = DEFT_NCCL_AVG; }));
    EXPECT_TRUE(differs([](CallRecord& c) { c.in_place = false; }));
    EXPECT_TRUE(differs([](CallRecord& c) { c.comm_serial = 2; }));
    EXPECT_TRUE(differs([](CallRecord& c) { c.root = 1; }));
    EXPECT_TRUE(differs([](CallRecord& c) { c.function = Function::Reduce; }));
    EXPECT_TRUE(differs([](CallRecord& c) { c.group = 1; })) << "in a group of several calls";
    EXPECT_FALSE(differs([](CallRecord& c) { c.stream = 99; }));
    EXPECT_FALSE(differs([](CallRecord& c) { c.issued_ns = 99; }));
}

TEST(Key, OneGroupIsLikeAnother) {
    CallRecord one = all_reduce(1000);
    CallRecord other = one;
    one.group = 5;
    other.group = 6;
    EXPECT_EQ(key_of(one), key_of(other));
}

TEST(Key, UserReductionsAreAlikeWhateverTheirNumber) {
    CallRecord one = all_reduce(1000);
    CallRecord other = one;
    one.op = 5;
    other.op = 77;
    EXPECT_EQ(key_of(one), key_of(other));
}

TEST(Payload, CountsTheLargerSide) {
    CallRecord call = all_reduce(1000);
    EXPECT_EQ(payload_bytes(call), 4000u);
    call.function = Function::ReduceScatter;
    EXPECT_EQ(payload_bytes(call), 8000u);
    call.type = DEFT_NCCL_BFLOAT16;
    EXPECT_EQ(payload_bytes(call), 4000u);
}

TEST(Gradient, FloatSumsAboveASize) {
    EXPECT_TRUE(carries_gradient(all_reduce(1000)));
    EXPECT_FALSE(carries_gradient(all_reduce(1))) << "a loss or a barrier";
    CallRecord call = all_reduce(100000);
    call.type = DEFT_NCCL_INT32;
    EXPECT_FALSE(carries_gradient(call)) << "the map of used parameters";
    call = all_reduce(100000);
    call.op = DEFT_NCCL_MAX;
    EXPECT_FALSE(carries_gradient(call));
    call = all_reduce(100000);
    call.function = Function::Broadcast;
    call.op = -1;
    EXPECT_FALSE(carries_gradient(call));
}

TEST(Gradient, MayBeASmallSumOfSeveralNumbers) {
    EXPECT_TRUE(may_be_small_gradient(all_reduce(2)));
    EXPECT_TRUE(may_be_small_gradient(all_reduce(255)));
    EXPECT_FALSE(may_be_small_gradient(all_reduce(256))) << "plans take it";
    EXPECT_FALSE(may_be_small_gradient(all_reduce(1))) << "a loss";
    const auto changed = [](auto change) {
        CallRecord call = all_reduce(100);
        change(call);
        return call;
    };
    EXPECT_TRUE(may_be_small_gradient(changed([](CallRecord& c) { c.op = DEFT_NCCL_AVG; })));
    EXPECT_FALSE(may_be_small_gradient(changed([](CallRecord& c) { c.op = DEFT_NCCL_MAX; })));
    EXPECT_FALSE(may_be_small_gradient(changed([](CallRecord& c) { c.type = DEFT_NCCL_INT32; })));
    EXPECT_FALSE(may_be_small_gradient(changed([](CallRecord& c) { c.in_place = false; })));
    EXPECT_FALSE(may_be_small_gradient(
        changed([](CallRecord& c) { c.function = Function::ReduceScatter; })));
}

TEST(Track, FindsTheBucketsOfDdp) {
    // Transformer of 32 MB: one bucket, then two (measured with PyTorch DDP).
    Track track;
    track.feed(all_reduce(8052800));
    for (int i = 0; i < 10; ++i) {
        track.feed(all_reduce(2056000, 100 * i));
        track.feed(all_reduce(5996800, 100 * i + 50));
    }
    track.settle();
    ASSERT_EQ(track.main_shape().size(), 2u);
    EXPECT_EQ(track.main_shape()[0].count, 2056000u);
    EXPECT_EQ(track.main_shape()[1].count, 5996800u);
    EXPECT_TRUE(track.stable());
    EXPECT_EQ(track.main_profile()->iterations(), 10u);
    EXPECT_DOUBLE_EQ(track.main_profile()->iteration_ms().summary().median, 100);
    EXPECT_EQ(track.changes(), 0u);
    EXPECT_EQ(track.iterations(), 10u);
    track.restart_profile();  // as a plan does that begins
    EXPECT_EQ(track.main_profile()->iterations(), 0u);
    EXPECT_EQ(track.iterations(), 10u) << "a counter does not fall";
    track.feed(all_reduce(2056000));
    track.feed(all_reduce(5996800));
    EXPECT_EQ(track.iterations(), 11u);
}

// Whether a track says after each of these calls, and a few more of the first kind, that its cycle
// is an iteration. Buffers are letters; capitals are the calls of one size, the others of another;
// a dot is a metric.
bool whole_after(const std::string& buffers, int times = 6) {
    Track track;
    for (int i = 0; i < times; ++i) {
        for (const char buffer : buffers) {
            CallRecord record = all_reduce(buffer == '.'               ? 1
                                           : std::isupper(buffer) != 0 ? 100'000
                                                                       : 50'000);
            record.buffer = static_cast<std::uint64_t>(buffer);
            track.feed(record);
        }
    }
    EXPECT_TRUE(track.stable()) << buffers;
    return track.whole();
}

TEST(Track, SeesByBuffersWhetherItsCycleIsAnIteration) {
    EXPECT_TRUE(whole_after("A"));
    EXPECT_TRUE(whole_after("Ab"));
    EXPECT_TRUE(whole_after("ABc")) << "equal buckets of an iteration that is known by another";
    EXPECT_TRUE(whole_after("abCd"));
    // Gradients of one iteration that is taken for several.
    EXPECT_FALSE(whole_after("AB"));
    EXPECT_FALSE(whole_after("ABCDEFGH"));
    EXPECT_FALSE(whole_after("AbCd"));
    EXPECT_FALSE(whole_after("AbCb")) << "one that returns does not speak for the other";
    EXPECT_FALSE(whole_after("ABBA")) << "other buffers each time, twice in a row where one begins";
    EXPECT_FALSE(whole_after("AAAB")) << "an allocator's";
}

// A loss that is summed in every second iteration makes one cycle of two of them.
TEST(Track, ACycleThatUsesABufferTwiceIsNoIteration) {
    EXPECT_FALSE(whole_after("AA."));
    EXPECT_FALSE(whole_after("AbAb."));
    EXPECT_FALSE(whole_after("AbcbAbcb.")) << "nor one that itself shares a buffer";
    EXPECT_TRUE(whole_after("AB.")) << "equal buckets and a metric";
    EXPECT_TRUE(whole_after("Ab."));
    EXPECT_TRUE(whole_after("A."));
}

TEST(Track, BuffersMayChangePlacesOrMoveAtTimes) {
    // Gradients that are allocated anew in each iteration.
    EXPECT_TRUE(whole_after("ABcBAc"));
    EXPECT_TRUE(whole_after("AbCbCbCbAb", 1));
    EXPECT_TRUE(whole_after("ABCAAAAAAA", 1));
    Track track;
    CallRecord lone = all_reduce(100'000);
    for (int i = 0; i < 40; ++i) {
        lone.buffer = i < 20 ? static_cast<std::uint64_t>(i) : 20;
        track.feed(lone);
        EXPECT_EQ(track.whole(), i >= 23) << i;
    }
    track.lost_calls();
    EXPECT_FALSE(track.whole()) << "nothing is in force";
}

// A job's next phase has two gradients of the size that the only one had.
TEST(Track, ACycleThatComesBackHasToShowItAgain) {
    Track track;
    const auto feed = [&track](std::uint64_t count, std::uint64_t buffer, int times = 1) {
        CallRecord record = all_reduce(count);
        record.buffer = buffer;
        for (int i = 0; i < times; ++i) {
            track.feed(record);
        }
    };
    feed(100'000, 1, 6);
    ASSERT_TRUE(track.whole());
    feed(20'000, 9);
    for (int i = 0; i < 10; ++i) {
        feed(100'000, 1);
        feed(100'000, 2);
        EXPECT_FALSE(track.whole()) << i;
    }
    feed(20'000, 9);
    feed(100'000, 1, 4);
    EXPECT_TRUE(track.whole());
    EXPECT_EQ(track.learner().cycles().size(), 1U) << "it is the same cycle";
}

// A metric, an evaluation: with the third repeat, with which the cycle is in force again.
TEST(Track, ShowsItAtOnceWhereOnlySmallCallsCameBetween) {
    const auto iterate = [](Track& track, const std::string& buffers) {
        for (const char buffer : buffers) {
            CallRecord record = all_reduce(buffer == '.' ? 1 : buffer == 'A' ? 100'000 : 50'000);
            record.buffer = static_cast<std::uint64_t>(buffer);
            track.feed(record);
        }
    };
    Track two;
    iterate(two, "AbAbAbAb");
    ASSERT_TRUE(two.whole());
    iterate(two, ".AbAb");
    EXPECT_FALSE(two.stable());
    iterate(two, "Ab");
    EXPECT_TRUE(two.whole());
    Track lone;
    iterate(lone, "AAAA");
    ASSERT_TRUE(lone.whole());
    iterate(lone, ".AAA");
    EXPECT_TRUE(lone.whole()) << "with the one before";
}

TEST(Track, SeveralCommunicatorsShareAnIteration) {
    Track track;
    for (int i = 0; i < 5; ++i) {
        CallRecord tensor_parallel = all_reduce(500);
        tensor_parallel.comm_serial = 2;
        track.feed(tensor_parallel);
        track.feed(all_reduce(500));
    }
    ASSERT_EQ(track.main_shape().size(), 2u);
    EXPECT_EQ(track.main_shape()[0].comm_serial, 2u);
    EXPECT_EQ(track.main_shape()[1].comm_serial, 1u);
}

TEST(Track, TheTrainingCycleWinsOverTheEvaluation) {
    Track track;
    for (int epoch = 0; epoch < 3; ++epoch) {
        for (int i = 0; i < 20; ++i) {
            track.feed(all_reduce(2000));
            track.feed(all_reduce(3000));
        }
        for (int i = 0; i < 6; ++i) {
            track.feed(all_reduce(1));
        }
    }
    track.settle();
    ASSERT_EQ(track.main_shape().size(), 2u);
    EXPECT_EQ(track.main_profile()->iterations(), 60u);
    EXPECT_GE(track.changes(), 4u);
}

TEST(Track, WaitsForTimesInOrder) {
    Track track;
    for (int i = 0; i < 4; ++i) {
        track.feed(all_reduce(2000, i));
    }
    track.settle();
    CallRecord timed = all_reduce(2000, 10);
    timed.events = 3;
    track.feed(timed);
    track.feed(all_reduce(2000, 11));
    track.settle();
    ASSERT_EQ(track.waiting().size(), 2u) << "the untimed one waits behind the timed one";
    EXPECT_EQ(track.waiting().front().events, 3);
    track.waiting().front().events = -1;
    track.waiting().front().call.timed = true;
    track.settle();
    EXPECT_TRUE(track.waiting().empty());
}

TEST(Track, EventsOutsideACycleAreGivenBack) {
    Track track;
    CallRecord timed = all_reduce(2000, 10);
    timed.events = 5;
    track.feed(timed);
    ASSERT_EQ(track.waiting().size(), 1u);
    EXPECT_EQ(track.waiting().front().events, 5);
    track.waiting().front().events = -1;
    track.settle();
    EXPECT_TRUE(track.waiting().empty());
}

TEST(Track, BeginsWhereItIsTurnedTo) {
    Track track;
    std::uint64_t ordinal = 0;
    const auto call = [&](std::uint64_t count, int at) {
        CallRecord record = all_reduce(count, at);
        record.ordinal = ordinal++;
        track.feed(record);
    };
    call(5000, 0);  // the first iteration is another one, but for its last call
    call(3000, 1);
    for (int i = 1; i < 6; ++i) {
        call(2000, 100 * i);
        call(3000, 100 * i + 1);
    }
    ASSERT_EQ(track.current_shape().front().count, 3000U);
    track.rotate(1);  // with calls that wait for their times
    track.settle();
    EXPECT_EQ(track.current_shape().front().count, 2000U);
    EXPECT_EQ(track.numbered(1, Series::Sums).iteration_start, CallRecord::kNoOrdinal);
    for (int i = 6; i < 9; ++i) {
        call(2000, 100 * i);
        EXPECT_EQ(track.numbered(1, Series::Sums).iteration_start, ordinal - 1);
        call(3000, 100 * i + 1);
    }
    track.settle();
    EXPECT_EQ(track.changes(), 0U);
    EXPECT_DOUBLE_EQ(track.current_profile()->iteration_ms().summary().median, 100);
}

TEST(Track, LostCallsStartTheSequenceAfresh) {
    Track track;
    for (int i = 0; i < 6; ++i) {
        track.feed(all_reduce(2000));
        track.feed(all_reduce(3000));
    }
    track.lost_calls();
    EXPECT_FALSE(track.stable());
    for (int i = 0; i < 3; ++i) {
        track.feed(all_reduce(2000));
        track.feed(all_reduce(3000));
    }
    EXPECT_TRUE(track.stable());
}

// A job makes a communicator, sums something and drops the communicator, as long as it runs.
TEST(Track, CommunicatorsThatAreGoneLeaveNothingBehind) {
    Track track;
    const auto iteration = [&track] {
        track.feed(all_reduce(1000));
        track.feed(all_reduce(2000));
    };
    for (int i = 0; i < 10; ++i) {
        iteration();
    }
    ASSERT_EQ(track.cycle_length(), 2U);
    for (std::uint32_t serial = 2; serial < 30'000; ++serial) {
        CallRecord metric = all_reduce(3000);
        metric.comm_serial = serial;
        track.feed(metric);
        track.feed(all_reduce(1000));
        ASSERT_LE(track.shapes(), 5000U);
    }
    EXPECT_EQ(track.calls(), 20U + 2U * 29'998U);
    for (int i = 0; i < 10; ++i) {
        iteration();
    }
    ASSERT_EQ(track.current_shape().size(), 2U) << "the cycle is known still";
    EXPECT_EQ(track.current_shape()[0].count + track.current_shape()[1].count, 3000U);
    EXPECT_EQ(track.current_shape()[0].comm_serial, 1U);
}

}  // namespace
}  // namespace deft
