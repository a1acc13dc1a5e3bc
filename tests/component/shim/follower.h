// SPDX-License-Identifier: Apache-2.0
// One rank's director under a leader that the test plays, on the software device, with an NCCL
// whose communicators come about when the test says so.
#pragma once

#include <cuda.h>
#include <nccl.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "shim/director/director.h"
#include "shim/planner/plan_json.h"
#include "tests/component/executor/plans.h"
#include "tests/component/shim/council_scene.h"

namespace deft::director::test {

using agreement::test::eventually;
using agreement::test::Scene;
using agreement::test::terms;

inline constexpr int kRanks = 2;
inline constexpr std::uint64_t kCounts[] = {50'000, 70'000};

// What the fake NCCL is told and asked.
struct Fake {
    std::atomic<bool> held{false};  // makers of communicators wait
    std::atomic<int> making{0};
    std::atomic<int> aborted{0};
    std::atomic<int> destroyed{0};
    std::atomic<int> error{0};  // asynchronous, of every lane
    std::atomic<bool> held_transfers{false};
    std::vector<ncclConfig_t> configs;  // by communicator, with the names of their networks
    std::vector<std::string> networks;
    std::vector<int> priorities;  // of the streams of their transfers
};
inline Fake g_lanes;

inline int make(deft_nccl_comm_t* comm, int, deft_nccl_unique_id_t, int) {
    ++g_lanes.making;
    eventually([] { return !g_lanes.held.load(); });
    *comm = reinterpret_cast<deft_nccl_comm_t>(std::uintptr_t{64});
    return 0;
}

// As make(), and looks at what it is given.
inline int make_configured(deft_nccl_comm_t* comm, int ranks, deft_nccl_unique_id_t id, int rank,
                           deft_nccl_config_t* given) {
    ncclConfig_t config;
    std::memcpy(&config, given, sizeof(config));
    g_lanes.configs.push_back(config);
    g_lanes.networks.emplace_back(config.netName != nullptr ? config.netName : "");
    return make(comm, ranks, id, rank);
}

// Every byte of the sum that a lane's warm-up asks for.
inline int all_reduce(const void*, void* receive, size_t count, int, int, deft_nccl_comm_t,
                      deft_cuda_stream_t stream) {
    auto* const on = reinterpret_cast<CUstream>(stream);
    int priority = 99;
    cuStreamGetPriority(on, &priority);
    g_lanes.priorities.push_back(priority);
    if (g_lanes.held_transfers) {
        cuLaunchHostFunc(
            on, [](void*) { eventually([] { return !g_lanes.held_transfers.load(); }); }, nullptr);
    }
    return cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(receive), kRanks, count * 4, on);
}

// The job's own calls.
class Job {
public:
    Job() {
        EXPECT_EQ(cuMemAlloc(&buffer_, kCounts[1] * 4), CUDA_SUCCESS);
        EXPECT_EQ(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    }
    ~Job() {
        EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        cuStreamDestroy(stream_);
        cuMemFree(buffer_);
    }
    Job(const Job&) = delete;
    // One gradient, which the plan in force takes.
    void call(Director& director, std::uint64_t ordinal, std::uint64_t count) {
        Call call;
        call.count = count;
        call.type = DEFT_NCCL_FLOAT32;
        call.op = DEFT_NCCL_SUM;
        call.send = call.receive = reinterpret_cast<void*>(buffer_);
        int result = -1;
        EXPECT_TRUE(director.all_reduce(call, ordinal, false,
                                        reinterpret_cast<deft_cuda_stream_t>(stream_), result));
        EXPECT_EQ(result, DEFT_NCCL_SUCCESS);
    }
    void iteration(Director& director, std::uint64_t& ordinal) {
        for (const std::uint64_t count : kCounts) {
            call(director, ordinal++, count);
        }
    }

private:
    CUdeviceptr buffer_ = 0;
    CUstream stream_ = nullptr;
};

inline const NcclTable& fake_table() {
    static const NcclTable table = [] {
        NcclTable t;
        t.CommInitRank = make;
        t.CommInitRankConfig = make_configured;
        t.AllReduce = all_reduce;
        t.CommDestroy = [](deft_nccl_comm_t) { return ++g_lanes.destroyed, 0; };
        t.CommAbort = [](deft_nccl_comm_t) { return ++g_lanes.aborted, 0; };
        t.CommGetAsyncError = [](deft_nccl_comm_t, int* error) {
            *error = g_lanes.error;
            return 0;
        };
        t.version = 22809;
        return t;
    }();
    return table;
}

inline std::uint64_t free_memory() {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);  // freed memory comes back in stream order
    EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
}

class Follower : public ::testing::Test {
protected:
    void SetUp() override {
        CUcontext context = nullptr;
        ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        g_lanes.held = g_lanes.held_transfers = false;
        g_lanes.configs.clear();
        g_lanes.networks.clear();
        g_lanes.priorities.clear();
        g_lanes.making = g_lanes.aborted = g_lanes.destroyed = g_lanes.error = 0;
        scene_.join(0)->created();
        scene_.councils[1] = agreement::join(scene_.id, kRanks, 1, terms());
        ASSERT_NE(scene_.councils[1], nullptr);
        scene_[1].created();
        Seat seat;
        seat.table = &fake_table();
        seat.serial = 1;
        seat.rank = 1;
        seat.nranks = kRanks;
        static auto& never_freed = *new std::vector<Director*>;  // nor is it at exit
        never_freed.push_back(director_ = new Director(seat, scene_[1]));
        ASSERT_TRUE(scene_.all(agreement::Verdict::On));
        for (int iteration = 0; iteration < 8; ++iteration) {
            for (const std::uint64_t count : kCounts) {
                CallRecord record;
                record.function = Function::AllReduce;
                record.count = count;
                record.type = DEFT_NCCL_FLOAT32;
                record.op = DEFT_NCCL_SUM;
                record.nranks = kRanks;
                record.comm_serial = 1;
                record.ordinal = ordinal_++;
                track_.feed(record);
            }
        }
    }
    void TearDown() override {
        g_lanes.held = false;
        director_->end(false);
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
    void order(Kind kind, std::uint64_t switch_call = ~0ULL) {
        Order order;
        order.kind = kind;
        order.stage = kind == Kind::Stage ? serial_ + 1 : stage_;
        stage_ = order.stage;
        order.signature = view_job(track_, false).signature;
        if (kind == Kind::Stage) {
            planner::Plan plan = executor::test::uniform_plan({kCounts[0] * 4, kCounts[1] * 4}, 1,
                                                              delay_, {{1, 0}}, 1);
            plan.predicted.max_delay = delay_;
            order.plan = planner::plan_to_json(plan);
            order.prediction = executor::to_text({});
        }
        if (kind == Kind::Open) {
            order.lanes.resize(lanes_wanted_ - lanes_);
        }
        order.keep = lanes_;
        agreement::Proposal proposal;
        proposal.serial = ++serial_;
        proposal.switch_call = switch_call;
        proposal.body = encode(order);
        proposal.patience = agreement::test::kPatience;
        ASSERT_TRUE(eventually([&] { return scene_[0].propose(proposal); }));
        ASSERT_TRUE(eventually([&] { return scene_.member(0).decisions().count(serial_) == 1; }));
        // The leader's own is the last word it gives; the follower's has been sent by then.
        ASSERT_EQ(
            scene_[1].wait_decision(serial_, agreement::Clock::now() + agreement::test::kPatience),
            agreement::Decision::Commit);
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
    // A plan is staged: lanes, memory, all of it.
    void stage() {
        order(Kind::Stage);
        ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
        order(Kind::Open);
        ASSERT_TRUE(answers(Step::Ready)) << answer().reason;
        lanes_ = lanes_wanted_;
    }

    Scene scene_{kRanks};
    Track track_;
    Director* director_ = nullptr;
    std::uint64_t ordinal_ = 0;
    std::uint64_t serial_ = 0;
    std::uint64_t stage_ = 0;
    std::uint64_t lanes_ = 0;  // that are open
    std::uint64_t lanes_wanted_ = 1;
    std::uint32_t delay_ = 1;
};

}  // namespace deft::director::test
