// SPDX-License-Identifier: Apache-2.0
// DeAR's plans: a sum goes as a reduce-scatter in the order of backward, and as an all-gather in
// the order of forward. Against the all-reduces that NCCL makes alone.
#include <barrier>
#include <string>
#include <utility>

#include "planner/policies/policy.h"
#include "tests/component/shim/executor/layer_job.h"

namespace deft::executor::test {
namespace {

// An element too many, one element, and as many as ranks.
const std::vector<std::uint64_t> kCounts{40961, 1, 20480, 2, 129};
constexpr auto kBuckets = static_cast<std::uint32_t>(5);

// As the planner makes them.
Plan dear_plan(const std::vector<Shape>& shapes) {
    planner::Profile profile;
    profile.forward = profile.backward = 1e-3;
    for (const Shape& shape : shapes) {
        planner::Bucket bucket;
        bucket.bytes = shape.bytes();
        bucket.ready = 1e-3;
        profile.buckets.push_back(bucket);
    }
    planner::Fabric fabric;
    fabric.links.emplace_back().name = "link0";
    fabric.links.front().cost.beta = 1e-9;
    planner::Options options;
    options.allow_fusion = false;
    return planner::make_plan("dear", profile, fabric, options);
}

// What the executor has called on its lane, and which of these calls is refused.
struct Calls {
    std::string made;  // 's': reduce-scatter, 'g': all-gather, 'r': all-reduce
    char refused = 0;  // the next of this kind
};
thread_local Calls t_calls;

bool refuses(char kind) {
    t_calls.made += kind;
    const bool refused = t_calls.refused == kind;
    if (refused) {
        t_calls.refused = 0;
    }
    return refused;
}

Nccl noted_nccl() {
    static const Nccl real = soft_nccl();
    Nccl nccl = real;
    nccl.ReduceScatter = [](const void* from, void* to, size_t count, int type, int op,
                            deft_nccl_comm_t comm, deft_cuda_stream_t stream) {
        return refuses('s') ? int{ncclSystemError}
                            : real.ReduceScatter(from, to, count, type, op, comm, stream);
    };
    nccl.AllGather = [](const void* from, void* to, size_t count, int type, deft_nccl_comm_t comm,
                        deft_cuda_stream_t stream) {
        return refuses('g') ? int{ncclSystemError}
                            : real.AllGather(from, to, count, type, comm, stream);
    };
    nccl.AllReduce = [](const void* from, void* to, size_t count, int type, int op,
                        deft_nccl_comm_t comm, deft_cuda_stream_t stream) {
        return refuses('r') ? int{ncclSystemError}
                            : real.AllReduce(from, to, count, type, op, comm, stream);
    };
    return nccl;
}

template <class Run>
void with_jobs(const std::vector<Shape>& shapes, Run run) {
    const Ids ids(1);
    softdev::test::run_ranks(2, [&](Rank& self) {
        const Lanes lanes(self, ids);
        t_calls = {};
        LayerJob job(self, lanes, 1, dear_plan(shapes), shapes, *cuda::Execution::get(),
                     noted_nccl());
        run(job, self);
        job.let_go();
        job.executor.reset();
    });
    EXPECT_EQ(softdevReports(), 0U);
}

// Of many digits: its bits tell in which order was added, and how.
std::vector<std::byte> gradient_of(const Shape& shape, int rank, std::int64_t t, std::uint32_t b) {
    const auto type = static_cast<ncclDataType_t>(shape.type);
    std::vector<std::byte> bytes(shape.bytes());
    for (std::uint64_t i = 0; i < shape.count; ++i) {
        const std::uint64_t mixed = (i * 2654435761U + static_cast<unsigned>(rank) * 40503U +
                                     static_cast<std::uint64_t>(t) * 977U + b * 31U) %
                                    10007;
        softdev::test::put(type, bytes.data() + i * softdev::test::size_of(type),
                           static_cast<double>(mixed) / 7 - 600);
    }
    return bytes;
}

std::vector<std::byte> summed_by_nccl(const Rank& self, const Shape& shape,
                                      const std::vector<std::byte>& gradient) {
    const Device<std::byte> buffer(gradient);
    EXPECT_EQ(
        ncclAllReduce(buffer.get(), buffer.get(), shape.count,
                      static_cast<ncclDataType_t>(shape.type), static_cast<ncclRedOp_t>(shape.op),
                      self.comm, reinterpret_cast<cudaStream_t>(self.stream)),
        ncclSuccess);
    self.sync();
    return buffer.host();
}

TEST(Halves, HaveTheBitsOfTheWholeSum) {
    const std::pair<ncclDataType_t, ncclRedOp_t> kinds[] = {
        {ncclFloat32, ncclSum}, {ncclFloat32, ncclAvg},  {ncclFloat32, ncclMax},
        {ncclFloat64, ncclSum}, {ncclBfloat16, ncclAvg}, {ncclFloat16, ncclSum}};
    for (const auto& [type, op] : kinds) {
        for (const bool in_place : {true, false}) {
            std::vector<Shape> shapes = shapes_of(kCounts, type, op);
            for (Shape& shape : shapes) {
                shape.in_place = in_place;
            }
            with_jobs(shapes, [&](LayerJob& job, Rank& self) {
                for (std::int64_t t = 0; t < 4; ++t) {
                    for (std::uint32_t b = 0; b < kBuckets; ++b) {
                        ASSERT_EQ(job.call(gradient_of(shapes[b], self.rank, t, b), b),
                                  ncclSuccess);
                    }
                    for (std::uint32_t b = kBuckets; b-- > 0;) {
                        ASSERT_EQ(job.wait_here(b), Wait::Waits);
                        const auto gradient = gradient_of(shapes[b], self.rank, t, b);
                        EXPECT_EQ(job.sum(b), summed_by_nccl(self, shapes[b], gradient))
                            << "bucket " << b << " of type " << shapes[b].type << " operation "
                            << shapes[b].op;
                    }
                    job.let_go();
                }
                EXPECT_EQ(job.executor->why(), BreakReason::None);
            });
        }
    }
}

// Backward's order, then forward's. What is one element too many goes with the first half, and
// fewer elements than ranks have no second one.
TEST(Halves, GoInTheOrdersOfBackwardAndOfForward) {
    with_jobs(shapes_of(kCounts), [](LayerJob& job, Rank& self) {
        const auto after = [&](std::uint32_t b) {
            t_calls.made.clear();
            EXPECT_EQ(job.call(0, b), ncclSuccess);
            return t_calls.made;
        };
        EXPECT_EQ(after(0), "sr");
        EXPECT_EQ(job.wait(0), Wait::NotSent);
        EXPECT_EQ(after(1), "r");  // nothing of it is held
        EXPECT_EQ(job.wait(1), Wait::Waits);
        EXPECT_EQ(after(2), "s");
        EXPECT_EQ(after(3), "s");
        EXPECT_EQ(after(4), "srgggg");
        self.sync();
        for (std::uint32_t b = 0; b < kBuckets; ++b) {
            EXPECT_EQ(job.wait_here(b), Wait::Waits);
            job.expect_sum(0, b);
        }
        const ExecutorStats stats = job.executor->stats();
        std::uint64_t bytes = 0;
        for (const std::uint64_t count : kCounts) {
            bytes += count * 4;
        }
        EXPECT_EQ(stats.launched_bytes, bytes);
        EXPECT_EQ(stats.lane_bytes[0], bytes);
    });
}

// Another call ends the plan on all ranks. What has been scattered is gathered first.
TEST(Halves, OfWhichTheFirstIsSentLoseNoSumWhenThePlanEnds) {
    with_jobs(shapes_of(kCounts), [](LayerJob& job, Rank&) {
        for (std::uint32_t b = 0; b < 3; ++b) {
            ASSERT_EQ(job.call(0, b), ncclSuccess);
        }
        EXPECT_EQ(job.wait(2), Wait::NotSent);
        t_calls.made.clear();
        ASSERT_EQ(job.call(0, 3, mark_of(3, kBuckets), 1), ncclSuccess);
        EXPECT_EQ(t_calls.made, "gg");
        EXPECT_EQ(job.executor->why(), BreakReason::Sequence);
        for (std::uint32_t b = 0; b < 3; ++b) {
            EXPECT_EQ(job.wait_here(b), Wait::Waits);
            job.expect_sum(0, b);
        }
    });
}

TEST(Halves, ThatNcclRefusesFailTheCallAndLoseTheSum) {
    for (const char refused : {'s', 'g'}) {
        with_jobs(shapes_of(kCounts), [refused](LayerJob& job, Rank&) {
            const std::uint32_t at = refused == 's' ? 2 : 4;
            for (std::uint32_t b = 0; b < at; ++b) {
                ASSERT_EQ(job.call(0, b), ncclSuccess);
            }
            t_calls.refused = refused;
            EXPECT_EQ(job.call(0, at), ncclSystemError);
            EXPECT_EQ(t_calls.refused, 0);
            EXPECT_EQ(job.executor->why(), BreakReason::Error);
            EXPECT_EQ(job.left[at].sums, nullptr);
            EXPECT_EQ(job.wait_here(0), Wait::Lost);
            EXPECT_EQ(job.wait_here(1), Wait::Waits);  // of one element: it has no second half
            job.expect_sum(0, 1);
        });
    }
}

// The communicator is aborted on both ranks between the halves.
TEST(Halves, OfWhichTheSecondIsNotSentAreLostByAnAbort) {
    std::barrier both(2);
    with_jobs(shapes_of(kCounts), [&](LayerJob& job, Rank&) {
        for (std::uint32_t b = 0; b < 3; ++b) {
            ASSERT_EQ(job.call(0, b), ncclSuccess);
        }
        const auto lane = reinterpret_cast<CUstream>(job.executor->first_lane()->stream());
        EXPECT_EQ(cuStreamSynchronize(lane), CUDA_SUCCESS);
        both.arrive_and_wait();
        EXPECT_TRUE(job.executor->stop());
        for (Lane* const lane : job.executor->all_lanes()) {
            lane->abort();
        }
        EXPECT_EQ(job.wait_here(0), Wait::Lost);
        EXPECT_EQ(job.wait_here(2), Wait::Lost);
        EXPECT_EQ(job.call(0, 3), ncclSuccess);  // by the job's own communicator
        EXPECT_EQ(job.left[3].sums, nullptr);
    });
}

TEST(Halves, AreRefusedWithoutTheFunctionsOfNcclTheyNeed) {
    const Ids ids(1);
    softdev::test::run_ranks(1, [&](Rank& self) {
        const Lanes lanes(self, ids);
        const std::vector<Shape> shapes = shapes_of(kCounts);
        CompileOptions options;
        options.layers = true;
        options.ranks = 2;
        std::string problem;
        Script script = compile(dear_plan(shapes), shapes, options, problem);
        ASSERT_EQ(problem, "");
        script.marks.assign(shapes.size(), 1);
        ExecutorOptions executing;
        executing.lease = true;
        Nccl nccl = soft_nccl();
        nccl.AllGather = nullptr;
        EXPECT_EQ(Executor::create(*cuda::Execution::get(), nccl, self.rank, lanes.pointers, script,
                                   executing, problem),
                  nullptr);
        EXPECT_EQ(problem, "the NCCL library lacks functions that plans need");
    });
}

}  // namespace
}  // namespace deft::executor::test
