// SPDX-License-Identifier: Apache-2.0
// Predicted delivery and covap's error feedback, bit by bit against the formulas.
#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <tuple>

#include "planner/convergence.h"
#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

const std::vector<std::uint64_t> kCounts{5003, 40001};
const std::vector<Part> kSplit{{0.6, 0}, {0.4, 1}};

using Reference = std::function<float(std::int64_t t, std::uint32_t bucket, std::uint64_t i)>;

// Runs `iterations` on two ranks and compares what each call delivers.
void expect_job(const Plan& plan, const CompileOptions& options, const ExecutorOptions& execution,
                std::int64_t iterations, const Reference& reference, std::uint64_t predicted) {
    const auto shapes = shapes_of(kCounts);
    std::string problem;
    const Script script = compile(plan, shapes, options, problem);
    ASSERT_EQ(problem, "");
    const Ids ids(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        std::string why;
        auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                         lanes.pointers, script, execution, why);
        ASSERT_NE(executor, nullptr) << why;
        for (std::int64_t t = 0; t < iterations; ++t) {
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                Device<std::byte> buffer(local_gradient(shapes[b], self.rank, t, b));
                ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(),
                                            buffer.get(), shapes[b]),
                          ncclSuccess);
                self.sync();
                expect_delivered(
                    buffer.host(), shapes[b],
                    [&](std::uint64_t i) { return static_cast<double>(reference(t, b, i)); },
                    "rank " + std::to_string(self.rank) + " iteration " + std::to_string(t) +
                        " bucket " + std::to_string(b));
            }
        }
        EXPECT_EQ(executor->stats().predicted, predicted);
    });
    EXPECT_EQ(softdevReports(), 0U);
}

float sum(std::int64_t t, std::uint32_t b, std::uint64_t i) {
    return static_cast<float>(reduced(2, t, b, i, ncclSum));
}

TEST(Predicted, LeadAfterDelayOne) {
    const Plan plan = uniform_plan(bytes_of(shapes_of(kCounts)), 1, 1, kSplit);
    CompileOptions options;
    options.lanes = 2;
    options.history = 1;
    ExecutorOptions execution;
    execution.prediction = {PredictionKind::Lead, 0.9};
    expect_job(
        plan, options, execution, 9,
        [](std::int64_t t, std::uint32_t b, std::uint64_t i) -> float {
            if (t == 0) {
                return 0;
            }
            if (t == 1) {
                return sum(0, b, i);
            }
            return static_cast<float>(1.9) * sum(t - 1, b, i) +
                   static_cast<float>(-0.9) * sum(t - 2, b, i);
        },
        7 * 2);
}

TEST(Predicted, ParabolaAfterDelayOne) {
    const Plan plan = uniform_plan(bytes_of(shapes_of(kCounts)), 1, 1, kSplit);
    CompileOptions options;
    options.lanes = 2;
    options.history = 2;
    ExecutorOptions execution;
    execution.prediction = {PredictionKind::Quad, 0};
    expect_job(
        plan, options, execution, 9,
        [](std::int64_t t, std::uint32_t b, std::uint64_t i) -> float {
            if (t == 0) {
                return 0;
            }
            if (t == 1) {
                return sum(0, b, i);
            }
            if (t == 2) {
                return 2 * sum(1, b, i) - sum(0, b, i);
            }
            return 3 * sum(t - 1, b, i) - 3 * sum(t - 2, b, i) + sum(t - 3, b, i);
        },
        7 * 2);
}

TEST(Predicted, ParabolaAfterDelayTwo) {
    const Plan plan = uniform_plan(bytes_of(shapes_of(kCounts)), 1, 2, kSplit);
    CompileOptions options;
    options.lanes = 2;
    options.history = 2;
    options.max_delay = 2;
    ExecutorOptions execution;
    execution.prediction = {PredictionKind::Quad, 0};
    expect_job(
        plan, options, execution, 12,
        [](std::int64_t t, std::uint32_t b, std::uint64_t i) -> float {
            if (t < 2) {
                return 0;
            }
            if (t == 2) {
                return sum(0, b, i);
            }
            if (t == 3) {
                return 3 * sum(1, b, i) - 2 * sum(0, b, i);
            }
            return 6 * sum(t - 2, b, i) - 8 * sum(t - 3, b, i) + 3 * sum(t - 4, b, i);
        },
        9 * 2);
}

TEST(Predicted, LeadAfterMergeTwoOneLate) {
    const Plan plan = uniform_plan(bytes_of(shapes_of(kCounts)), 2, 1, kSplit);
    CompileOptions options;
    options.lanes = 2;
    options.history = 1;
    ExecutorOptions execution;
    execution.prediction = {PredictionKind::Lead, 0.5};
    expect_job(
        plan, options, execution, 12,
        [](std::int64_t t, std::uint32_t b, std::uint64_t i) -> float {
            const auto merged = [&](std::int64_t first) {
                return sum(first, b, i) + sum(first + 1, b, i);
            };
            if (t % 2 != 0 || t == 0) {
                return 0;
            }
            return t == 2 ? merged(0) : 1.5F * merged(t - 2) - 0.5F * merged(t - 4);
        },
        4 * 2);
}

TEST(Predicted, DampedDelayOne) {
    const Plan plan = uniform_plan(bytes_of(shapes_of(kCounts)), 1, 1, kSplit);
    CompileOptions options;
    options.lanes = 2;
    ExecutorOptions execution;
    execution.prediction = {PredictionKind::Damp, 0.5};
    expect_job(
        plan, options, execution, 6,
        [](std::int64_t t, std::uint32_t b, std::uint64_t i) -> float {
            return t == 0 ? 0 : 0.5F * sum(t - 1, b, i);
        },
        5 * 2);
}

// Bucket 0 and what comes first of bucket 1 are fresh; the rest of it is an iteration late.
Plan tail_plan(const std::vector<Shape>& shapes, std::uint64_t fresh) {
    Plan plan;
    plan.policy = "mixed-ages";
    plan.period = 1;
    plan.bucket_bytes = bytes_of(shapes);
    plan.links = {"one"};
    const auto add = [&plan](std::uint32_t bucket, std::uint64_t begin, std::uint64_t end,
                             std::int32_t late) {
        Transfer transfer;
        transfer.bucket = bucket;
        transfer.begin = begin;
        transfer.end = end;
        transfer.generation = {0, 1};
        transfer.order = static_cast<std::uint32_t>(plan.transfers.size());
        plan.transfers.push_back(transfer);
        plan.deliveries.push_back({0, bucket, begin, end, {-late, 1}});
    };
    add(0, 0, shapes[0].bytes(), 0);
    add(1, 0, fresh, 0);
    add(1, fresh, shapes[1].bytes(), 1);
    return plan;
}

TEST(MixedAges, OnlyTheTailIsLateAndHasMemory) {
    const auto shapes = shapes_of(kCounts);
    constexpr std::uint64_t kFresh = 80384;
    const Plan plan = tail_plan(shapes, kFresh);
    CompileOptions options;
    std::string problem;
    const Script script = compile(plan, shapes, options, problem);
    ASSERT_EQ(problem, "");
    EXPECT_LE(script.shadow_bytes, 2 * (shapes[1].bytes() - kFresh + 512));
    EXPECT_FALSE(script.action(0, 0).forward) << "the guard is to see all of the gradient";
    expect_job(
        plan, options, {}, 6,
        [](std::int64_t t, std::uint32_t b, std::uint64_t i) -> float {
            const bool late = b == 1 && i >= kFresh / 4;
            return !late ? sum(t, b, i) : t == 0 ? 0 : sum(t - 1, b, i);
        },
        0);
}

TEST(MixedAges, OnlyTheTailIsPredicted) {
    const auto shapes = shapes_of(kCounts);
    constexpr std::uint64_t kFresh = 80384;
    CompileOptions options;
    options.history = 1;
    ExecutorOptions execution;
    execution.prediction = {PredictionKind::Lead, 0.5};
    expect_job(
        tail_plan(shapes, kFresh), options, execution, 6,
        [](std::int64_t t, std::uint32_t b, std::uint64_t i) -> float {
            if (b == 0 || i < kFresh / 4) {
                return sum(t, b, i);
            }
            return t == 0   ? 0
                   : t == 1 ? sum(0, b, i)
                            : 1.5F * sum(t - 1, b, i) - 0.5F * sum(t - 2, b, i);
        },
        4);
}

// What is late of a bucket goes behind what is fresh of it, in one call and on one lane. The call's
// stream waits for the fresh part alone: the late one has until the next iteration.
constexpr std::uint64_t kHeldCount = 19905;  // elements
std::atomic<bool> let_go{false};
std::atomic<int> gave_up{0};

void hold(void*) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!let_go && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    gave_up += let_go ? 0 : 1;
}

int all_reduce_held(const void* from, void* to, std::size_t count, int type, int op,
                    deft_nccl_comm_t comm, deft_cuda_stream_t stream) {
    if (count == kHeldCount) {
        EXPECT_EQ(cuLaunchHostFunc(reinterpret_cast<CUstream>(stream), hold, nullptr),
                  CUDA_SUCCESS);
    }
    return ncclAllReduce(from, to, count, static_cast<ncclDataType_t>(type),
                         static_cast<ncclRedOp_t>(op), reinterpret_cast<ncclComm_t>(comm),
                         reinterpret_cast<cudaStream_t>(stream));
}

TEST(MixedAges, ACallWaitsForWhatIsFreshAlone) {
    const auto shapes = shapes_of(kCounts);
    std::string problem;
    const Script script = compile(tail_plan(shapes, shapes[1].bytes() - 4 * kHeldCount), shapes,
                                  CompileOptions{}, problem);
    ASSERT_EQ(problem, "");
    Nccl nccl = soft_nccl();
    nccl.AllReduce = as<decltype(nccl.AllReduce)>(&all_reduce_held);
    const Ids ids(1);
    let_go = false;
    gave_up = 0;
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        std::string why;
        auto executor = Executor::create(*cuda::Execution::get(), nccl, self.rank, lanes.pointers,
                                         script, {}, why);
        ASSERT_NE(executor, nullptr) << why;
        Device<std::byte> buffer(local_gradient(shapes[1], self.rank, 0, 1));
        for (std::uint32_t b = 0; b < shapes.size(); ++b) {
            ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(), buffer.get(),
                                        shapes[b]),
                      ncclSuccess);
        }
        self.sync();
        EXPECT_EQ(gave_up, 0) << "the call waited for what is late";
        let_go = true;
    });
}

// Two updates in three iterations, an iteration late: of one gradient, and of two.
TEST(Fractional, UpdatesSumNowOneGradientAndNowTwo) {
    const auto shapes = shapes_of(kCounts);
    Plan plan;
    plan.policy = "generations";
    plan.period = 3;
    plan.bucket_bytes = bytes_of(shapes);
    plan.links = {"one"};
    const auto add = [&](std::uint32_t newest, std::uint32_t count) {
        for (std::uint32_t b = 0; b < shapes.size(); ++b) {
            Transfer transfer;
            transfer.bucket = b;
            transfer.end = shapes[b].bytes();
            transfer.generation = {static_cast<std::int32_t>(newest + 1 - count), count};
            transfer.iteration = newest;
            transfer.order = static_cast<std::uint32_t>(plan.transfers.size());
            plan.transfers.push_back(transfer);
            const std::uint32_t at = (newest + 1) % 3;
            plan.deliveries.push_back(
                {at,
                 b,
                 0,
                 shapes[b].bytes(),
                 {static_cast<std::int32_t>(at) - static_cast<std::int32_t>(count), count}});
        }
    };
    add(0, 1);
    add(2, 2);
    expect_job(
        plan, {}, {}, 10,
        [](std::int64_t t, std::uint32_t b, std::uint64_t i) -> float {
            switch (t % 3) {
                case 0:
                    return t == 0 ? 0 : sum(t - 1, b, i) + sum(t - 2, b, i);
                case 1:
                    return sum(t - 1, b, i);
                default:
                    return 0;
            }
        },
        0);
}

constexpr std::uint32_t kInterval = 3;

struct CovapPiece {
    std::uint32_t bucket;
    std::uint64_t begin, end;
};

Plan covap_plan(const std::vector<Shape>& shapes, const std::vector<CovapPiece>& pieces) {
    Plan plan;
    plan.policy = "covap";
    plan.period = kInterval;
    plan.bucket_bytes = bytes_of(shapes);
    plan.links = {"one"};
    for (std::uint32_t t = 0; t < kInterval; ++t) {
        for (std::uint32_t p = 0; p < pieces.size(); ++p) {
            if ((p + t) % kInterval == 0) {
                const Generation kept{
                    static_cast<std::int32_t>(t) - static_cast<std::int32_t>(kInterval) + 1,
                    kInterval};
                Transfer transfer;
                transfer.bucket = pieces[p].bucket;
                transfer.begin = pieces[p].begin;
                transfer.end = pieces[p].end;
                transfer.generation = kept;
                transfer.iteration = t;
                transfer.order = static_cast<std::uint32_t>(plan.transfers.size());
                plan.transfers.push_back(transfer);
                plan.deliveries.push_back(
                    {t, pieces[p].bucket, pieces[p].begin, pieces[p].end, kept});
            }
        }
    }
    return plan;
}

// covap as its paper defines it: piece p goes out when (p + t) mod I is 0, e is what is kept.
TEST(Covap, ErrorFeedbackFollowsTheCoefficientSchedule) {
    const auto shapes = shapes_of(kCounts);
    // Bucket 0 whole, bucket 1 in two.
    const std::uint64_t half = 80384;
    const std::vector<CovapPiece> pieces{
        {0, 0, shapes[0].bytes()}, {1, 0, half}, {1, half, shapes[1].bytes()}};
    const Plan plan = covap_plan(shapes, pieces);
    CompileOptions options;
    options.residual = true;
    ExecutorOptions execution;
    execution.first_iteration = 100;  // coefficient 0.7 from here on, 0.8 from 150
    // Residuals of both ranks, as floats.
    std::map<std::tuple<int, std::uint32_t, std::uint64_t>, float> residual;
    std::int64_t done = -1;
    std::map<std::tuple<std::uint32_t, std::uint64_t>, float> sent;
    const auto advance = [&](std::int64_t t) {
        sent.clear();
        const auto kappa =
            static_cast<float>(planner::covap_coefficient(kInterval, 100 + std::uint64_t(t)));
        for (std::uint32_t p = 0; p < pieces.size(); ++p) {
            const CovapPiece& piece = pieces[p];
            const bool goes = (p + static_cast<std::uint32_t>(t)) % kInterval == 0;
            const bool whole = piece.bucket == 0;
            for (std::uint64_t i = piece.begin / 4; i < piece.end / 4; ++i) {
                float total = 0;
                for (int r = 0; r < 2; ++r) {
                    const auto g = static_cast<float>(gradient(r, t, piece.bucket, i));
                    const auto key = std::make_tuple(r, piece.bucket, i);
                    const auto found = residual.find(key);
                    const float e = found == residual.end()
                                        ? g
                                        : (goes && whole ? 1.0F : kappa) * found->second + g;
                    if (goes) {
                        total += e;
                        residual.erase(key);
                    } else {
                        residual[key] = e;
                    }
                }
                sent[{piece.bucket, i}] = goes ? total : 0;
            }
        }
    };
    std::mutex mutex;
    std::map<std::int64_t, std::map<std::tuple<std::uint32_t, std::uint64_t>, float>> wanted;
    expect_job(
        plan, options, execution, 7,
        [&](std::int64_t t, std::uint32_t b, std::uint64_t i) -> float {
            const std::lock_guard lock(mutex);
            while (done < t) {
                advance(++done);
                wanted[done] = sent;
            }
            return wanted[t][{b, i}];
        },
        0);
}

}  // namespace
}  // namespace deft::executor::test
