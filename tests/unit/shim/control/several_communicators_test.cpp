// SPDX-License-Identifier: Apache-2.0
// What links can do, where calls of several communicators meet on them.
#include <gtest/gtest.h>

#include <algorithm>

#include "shim/control/job_view.h"

namespace deft::director {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::uint64_t kCount = 50'000;  // 200 kB that each of two ranks sends

struct Made {
    Function function;
    std::uint32_t comm;
    std::int64_t start;  // ms of the iteration
    std::int64_t end;
};

void feed(Track& track, const Made& made, std::int64_t begin, std::uint64_t ordinal) {
    CallRecord record;
    record.function = made.function;
    record.comm_serial = made.comm;
    record.count = kCount;
    record.type = DEFT_NCCL_FLOAT32;
    record.op = made.function == Function::AllGather ? -1 : DEFT_NCCL_SUM;
    record.nranks = 2;
    record.stream = made.comm + (made.function == Function::AllGather ? 10 : 0);
    record.issued_ns = (begin + made.start) * kMs;
    record.ordinal = ordinal;
    track.feed(record);
    if (!track.waiting().empty()) {
        TimedCall& call = track.waiting().back().call;
        call.timed = true;
        call.start = (begin + made.start) * kMs;
        call.end = (begin + made.end) * kMs;
    }
    track.settle();
}

// Milliseconds of the transfers of one communicator.
std::vector<double> transfers_of(const std::vector<Made>& iteration, std::uint32_t comm) {
    Track track;
    for (std::int64_t i = 0; i < 20; ++i) {
        std::uint64_t in_comm[3] = {};
        for (const Made& made : iteration) {
            const auto calls = static_cast<std::uint64_t>(
                std::count_if(iteration.begin(), iteration.end(),
                              [&](const Made& other) { return other.comm == made.comm; }));
            const std::uint64_t before = static_cast<std::uint64_t>(i) * calls;
            feed(track, made, i * 100, before + in_comm[made.comm]++);
        }
    }
    const JobView view = view_job(track, comm, true);
    EXPECT_EQ(view.reason, "");
    EXPECT_TRUE(view.measured);
    std::vector<double> transfers;
    for (const planner::Bucket& bucket : view.profile.buckets) {
        transfers.push_back(bucket.transfer.median * 1e3);
    }
    return transfers;
}

void expect_near(const std::vector<double>& transfers, const std::vector<double>& wanted) {
    ASSERT_EQ(transfers.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_NEAR(transfers[i], wanted[i], 1e-6) << i;
    }
}

// HSDP: 10 ms of the gather are shared with the sum of another layer.
TEST(SeveralCommunicators, ShareTheLinksTheyMeetOn) {
    const std::vector<Made> hsdp{{Function::AllGather, 1, 10, 30},
                                 {Function::AllReduce, 2, 20, 40},
                                 {Function::ReduceScatter, 1, 40, 60}};
    expect_near(transfers_of(hsdp, 1), {15, 20});
    // By itself 15 ms; the other one has more to carry, and takes 35 ms for 400 kB.
    expect_near(transfers_of(hsdp, 2), {17.5});
}

TEST(SeveralCommunicators, KeepTheirOwnTimesOnLinksOfTheirOwn) {
    const std::vector<Made> nvlink{{Function::AllGather, 1, 10, 30},
                                   {Function::AllReduce, 2, 20, 22},
                                   {Function::ReduceScatter, 1, 40, 60}};
    expect_near(transfers_of(nvlink, 1), {20, 20});
    expect_near(transfers_of(nvlink, 2), {2});
}

}  // namespace
}  // namespace deft::director
