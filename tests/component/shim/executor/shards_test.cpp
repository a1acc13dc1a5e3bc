// SPDX-License-Identifier: Apache-2.0
// Reduce-scatters and all-gathers cut over lanes, against the same calls made by NCCL alone.
#include <algorithm>
#include <array>
#include <thread>

#include "shim/executor/lane_times.h"
#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

struct Scenario {
    const char* name;
    Function function;
    bool in_place = true;
    ncclDataType_t type = ncclFloat32;
    ncclRedOp_t op = ncclSum;
    int nranks = 2;
    std::vector<Part> parts = {{0.6, 0}, {0.4, 1}};
    std::uint64_t most_staged = 32 << 20;

    friend void PrintTo(const Scenario& s, std::ostream* out) { *out << s.name; }
};

const std::vector<std::uint64_t> kCounts{5003, 40001, 1024};  // of one rank

// Of many digits, so that bits tell in which order they were summed; of more than two ranks, whose
// order NCCL chooses by the size, small whole numbers.
double value(int nranks, int rank, int iteration, std::uint64_t i) {
    const auto mixed = static_cast<double>((i * 2654435761U + static_cast<unsigned>(rank) * 40503U +
                                            static_cast<unsigned>(iteration) * 977U) %
                                           10007);
    return nranks > 2 ? static_cast<double>(static_cast<int>(mixed) % 5) : mixed / 7 - 600;
}

// One rank's two sets of buffers: what a plan deals with, and what NCCL does.
class Buffers {
public:
    Buffers(const Scenario& scenario, const Shape& shape, const Rank& self, int iteration)
        : scatters_(scenario.function == Function::ReduceScatter), part_(shape.bytes()) {
        const auto ranks = static_cast<std::size_t>(self.nranks);
        const std::size_t own = static_cast<std::size_t>(self.rank) * part_;
        std::vector<std::byte> whole(part_ * ranks, std::byte{0x5a});
        const std::size_t size = softdev::test::size_of(scenario.type);
        const std::size_t from = scatters_ ? 0 : own / size;
        const std::size_t until = scatters_ ? whole.size() / size : (own + part_) / size;
        for (std::size_t i = from; i < until; ++i) {
            softdev::test::put(scenario.type, whole.data() + i * size,
                               value(self.nranks, self.rank, iteration, i));
        }
        const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(own);
        const auto end = begin + static_cast<std::ptrdiff_t>(part_);
        if (!scenario.in_place) {
            apart_ = std::make_unique<Device<std::byte>>(std::vector<std::byte>(begin, end));
            if (!scatters_) {
                std::fill(begin, end, std::byte{0x5a});  // it has to be put there, too
            }
        }
        whole_ = std::make_unique<Device<std::byte>>(whole);
        std::byte* const mine = apart_ ? apart_->get() : whole_->get() + own;
        send_ = scatters_ ? whole_->get() : mine;
        receive_ = scatters_ ? mine : whole_->get();
    }
    const void* send() const { return send_; }
    void* receive() const { return receive_; }
    // All that the call may have written, and what it must not.
    std::vector<std::byte> all() const {
        std::vector<std::byte> bytes = whole_->host();
        const std::vector<std::byte> more = apart_ ? apart_->host() : std::vector<std::byte>{};
        bytes.insert(bytes.end(), more.begin(), more.end());
        return bytes;
    }

private:
    const bool scatters_;
    const std::size_t part_;
    std::unique_ptr<Device<std::byte>> whole_;
    std::unique_ptr<Device<std::byte>> apart_;
    const std::byte* send_ = nullptr;
    std::byte* receive_ = nullptr;
};

ncclResult_t call_nccl(const Shape& shape, const Buffers& buffers, const Rank& self) {
    const auto stream = reinterpret_cast<cudaStream_t>(self.stream);
    const auto type = static_cast<ncclDataType_t>(shape.type);
    return shape.function == Function::ReduceScatter
               ? ncclReduceScatter(buffers.send(), buffers.receive(), shape.count, type,
                                   static_cast<ncclRedOp_t>(shape.op), self.comm, stream)
               : ncclAllGather(buffers.send(), buffers.receive(), shape.count, type, self.comm,
                               stream);
}

std::vector<Shape> shapes_of(const Scenario& scenario) {
    std::vector<Shape> shapes;
    for (const std::uint64_t count : kCounts) {
        const int op = scenario.function == Function::AllGather ? -1 : scenario.op;
        shapes.push_back({count, scenario.type, op, scenario.in_place, scenario.function});
    }
    return shapes;
}

Script script_of(const Scenario& scenario, const std::vector<Shape>& shapes) {
    CompileOptions options;
    options.lanes = 2;
    options.forward_lane = kNoLane;
    options.ranks = static_cast<std::uint32_t>(scenario.nranks);
    options.most_staged = scenario.most_staged;
    std::string problem;
    const Script script =
        compile(uniform_plan(bytes_of(shapes), 1, 0, scenario.parts), shapes, options, problem);
    EXPECT_EQ(problem, "");
    return script;
}

// The last iteration; the ones before may not be as the plan says. By a thread that has no context.
void expect_timed(const Executor& executor, std::size_t calls) {
    LaneTimes* const times = executor.lane_times();
    ASSERT_NE(times, nullptr);
    std::thread([times] { times->take(); }).join();
    EXPECT_EQ(times->calls(), calls);
    std::array<std::uint64_t, 2> bytes{};
    for (const LaneUse& use : times->uses()) {
        EXPECT_EQ(use.each.size(), use.measured);
        EXPECT_EQ(use.measured, 1U);
        EXPECT_GT(use.seconds, 0);
        for (const std::uint64_t piece : use.pieces) {
            bytes.at(use.lane) += piece;
        }
    }
    for (std::size_t lane = 0; lane < 2; ++lane) {
        EXPECT_EQ(3 * bytes.at(lane), executor.stats().lane_bytes.at(lane));
    }
}

class Shards : public ::testing::TestWithParam<Scenario> {};

TEST_P(Shards, AreWhatNcclMakesOfThem) {
    const Scenario& scenario = GetParam();
    const std::vector<Shape> shapes = shapes_of(scenario);
    const Script script = script_of(scenario, shapes);
    const Ids ids(2);
    softdev::test::run_ranks(scenario.nranks, [&](Rank& self) {
        Lanes lanes(self, ids);
        std::string why;
        auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                         lanes.pointers, script, {}, why);
        ASSERT_NE(executor, nullptr) << why;
        for (int t = 0; t < 3; ++t) {
            for (const Shape& shape : shapes) {
                const Buffers planned(scenario, shape, self, t);
                const Buffers plain(scenario, shape, self, t);
                const Call call{shape.function, shape.count,      shape.type, shape.op, -1,
                                planned.send(), planned.receive()};
                int result = -1;
                ASSERT_TRUE(executor->all_reduce(call, reinterpret_cast<cuda::Stream>(self.stream),
                                                 result));
                ASSERT_EQ(result, ncclSuccess);
                ASSERT_EQ(call_nccl(shape, plain, self), ncclSuccess);
                self.sync();
                ASSERT_EQ(planned.all(), plain.all())
                    << "rank " << self.rank << " iteration " << t << " count " << shape.count;
            }
        }
        const ExecutorStats stats = executor->stats();
        EXPECT_EQ(stats.executed, 3U * shapes.size());
        const bool split = scenario.parts.size() > 1;
        expect_timed(*executor, shapes.size());
        EXPECT_EQ(stats.lane_bytes[0] > 0, split);
        EXPECT_GT(stats.lane_bytes[1], 0U);
        EXPECT_FALSE(executor->broken());
    });
    EXPECT_EQ(softdevReports(), 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, Shards,
    ::testing::Values(Scenario{"scattered", Function::ReduceScatter},
                      Scenario{"scattered out of place", Function::ReduceScatter, false},
                      Scenario{"scattered averages of bf16", Function::ReduceScatter, false,
                               ncclBfloat16, ncclAvg},
                      Scenario{"scattered by three ranks", Function::ReduceScatter, true,
                               ncclFloat32, ncclSum, 3},
                      Scenario{"scattered in stretches",
                               Function::ReduceScatter,
                               false,
                               ncclFloat32,
                               ncclSum,
                               2,
                               {{0.6, 0}, {0.4, 1}},
                               10'000},
                      Scenario{"scattered by the other lane alone",
                               Function::ReduceScatter,
                               false,
                               ncclFloat32,
                               ncclSum,
                               2,
                               {{1, 1}}},
                      Scenario{"gathered", Function::AllGather},
                      Scenario{"gathered out of place", Function::AllGather, false},
                      Scenario{"gathered bytes", Function::AllGather, false, ncclUint8},
                      Scenario{"gathered by three ranks", Function::AllGather, true, ncclBfloat16,
                               ncclSum, 3},
                      Scenario{"gathered in stretches",
                               Function::AllGather,
                               true,
                               ncclFloat32,
                               ncclSum,
                               2,
                               {{0.6, 0}, {0.4, 1}},
                               10'000},
                      Scenario{"gathered by the other lane alone",
                               Function::AllGather,
                               true,
                               ncclFloat32,
                               ncclSum,
                               2,
                               {{1, 1}}}),
    [](const auto& info) {
        std::string name = info.param.name;
        std::replace_if(
            name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
        return name;
    });

TEST(ShardScript, KeepsMemoryForWhatALaneCarriesAtOnce) {
    Scenario scenario{"", Function::AllGather};
    const std::vector<Shape> shapes = shapes_of(scenario);
    const Script whole = script_of(scenario, shapes);
    ASSERT_EQ(whole.staging.size(), 2U);
    // The largest call: 40001 numbers of each of two ranks, cut at a multiple of 512 bytes.
    EXPECT_EQ(whole.staging[0].bytes, 2U * 95'744);
    EXPECT_EQ(whole.staging[0].bytes + whole.staging[1].bytes, 2U * 40'001 * 4);
    EXPECT_GE(whole.shadow_bytes, 2U * 40'001 * 4);
    scenario.most_staged = 10'000;
    const Script stretched = script_of(scenario, shapes);
    EXPECT_EQ(stretched.staging[0].bytes, 10'000U);
    EXPECT_GT(stretched.launches.size(), whole.launches.size());
    EXPECT_EQ(stretched.series(), Series::Shards);
}

// Another function, or another place, is another sequence: the plan ends.
TEST(ShardPlan, EndsWithACallThatIsNotItsOwn) {
    const Scenario scenario{"", Function::AllGather};
    const std::vector<Shape> shapes = shapes_of(scenario);
    const Script script = script_of(scenario, shapes);
    const Ids ids(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        for (const bool in_place : {true, false}) {
            std::string why;
            auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                             lanes.pointers, script, {}, why);
            ASSERT_NE(executor, nullptr) << why;
            Scenario other = scenario;
            other.in_place = in_place;
            other.function = in_place ? Function::ReduceScatter : Function::AllGather;
            const Buffers buffers(other, shapes[0], self, 0);
            const Call call{other.function, shapes[0].count,  shapes[0].type, shapes[0].op, -1,
                            buffers.send(), buffers.receive()};
            int result = 0;
            EXPECT_FALSE(
                executor->all_reduce(call, reinterpret_cast<cuda::Stream>(self.stream), result));
            EXPECT_EQ(executor->why(), BreakReason::Sequence);
        }
    });
}

TEST(ShardPlan, IsNeitherLateNorMergedNorMixedWithSums) {
    const Scenario scenario{"", Function::ReduceScatter};
    std::vector<Shape> shapes = shapes_of(scenario);
    CompileOptions options;
    options.lanes = 2;
    std::string problem;
    compile(uniform_plan(bytes_of(shapes), 1, 1, {{1, 0}}), shapes, options, problem);
    EXPECT_NE(problem.find("can't wait"), std::string::npos) << problem;
    shapes[1].function = Function::AllReduce;
    compile(uniform_plan(bytes_of(shapes), 1, 0, {{1, 0}}), shapes, options, problem);
    EXPECT_NE(problem.find("for all-reduces and for shards"), std::string::npos) << problem;
}

}  // namespace
}  // namespace deft::executor::test
