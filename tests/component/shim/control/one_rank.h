// SPDX-License-Identifier: Apache-2.0
// One rank's director on the software device, with an NCCL whose communicators come about when the
// test says so. The test plays the other rank.
#pragma once

#include <cuda.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "shim/control/director.h"
#include "shim/nccl/sum_mark.h"
#include "tests/component/shim/agreement/council_scene.h"

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
    std::atomic<bool> disturbs{false};  // one was made where that ends a capture of the job's
    std::thread::id maker;              // of the latest
    std::atomic<int> told{0};           // to abort
    std::atomic<int> stuck{1};  // communicators with a kernel on the device, until they are told
    std::atomic<int> aborted{0};
    std::atomic<int> destroyed{0};
    std::atomic<bool> held_ids{false};  // who asks for a unique id waits
    std::atomic<int> asking{0};
    std::atomic<bool> held_calls{false};  // of all-reduces
    std::atomic<int> calling{0};
    std::atomic<int> called{0};
    std::thread::id caller;                   // of the latest
    std::atomic<bool> torn{false};            // a communicator was aborted under a call
    std::atomic<int> error{0};                // asynchronous, of every lane
    std::atomic<bool> held_transfers{false};  // until a communicator is aborted
    std::atomic<bool> refused{false};         // the other rank does not vouch for the plan
    std::atomic<int> questions{0};            // of the ranks to each other
    std::atomic<bool> unanswered{false};      // those that follow, until a communicator is aborted
    std::atomic<bool> job_stuck{false};       // on the device: the job's communicator has a kernel
    std::atomic<bool> connecting{false};      // who calls an all-reduce, until an abort
    std::atomic<bool> connecting_apart{false};  // the same of simulated groups
    std::atomic<int> simulated{0};              // all-reduces
    std::atomic<bool> waited_in_vain{false};    // a call or an abort of a lane
    std::atomic<std::int64_t> ns_per_kib{0};    // that a transfer takes
    std::vector<ncclConfig_t> configs;          // by communicator, with the names of their networks
    std::vector<std::string> networks;
    std::vector<int> priorities;  // of the streams of their transfers
    // What was asked for: type, operation, count.
    std::vector<std::array<std::size_t, 3>> asked;
    bool noting = false;     // what is sent; this waits for the transfers before
    std::deque<float> sent;  // the first number of each transfer
};
inline Fake g_lanes;

inline void reset_lanes() {
    g_lanes.held = g_lanes.held_transfers = g_lanes.held_calls = g_lanes.torn = false;
    g_lanes.disturbs = false;
    g_lanes.told = 0;
    g_lanes.stuck = 1;
    g_lanes.connecting_apart = false;
    g_lanes.simulated = 0;
    g_lanes.connecting = g_lanes.refused = g_lanes.unanswered = false;
    g_lanes.held_ids = g_lanes.job_stuck = g_lanes.waited_in_vain = false;
    g_lanes.ns_per_kib = 0;
    g_lanes.asking = g_lanes.called = g_lanes.questions = 0;
    g_lanes.configs.clear();
    g_lanes.networks.clear();
    g_lanes.priorities.clear();
    g_lanes.asked.clear();
    g_lanes.noting = false;
    g_lanes.sent.clear();
    g_lanes.making = g_lanes.aborted = g_lanes.destroyed = g_lanes.error = 0;
}

inline int make(deft_nccl_comm_t* comm, int, deft_nccl_unique_id_t, int) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuThreadExchangeStreamCaptureMode(&mode);
    g_lanes.disturbs = g_lanes.disturbs || mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    cuThreadExchangeStreamCaptureMode(&mode);
    g_lanes.maker = std::this_thread::get_id();
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

inline thread_local bool t_in_group = false;

inline int simulate_end(deft_nccl_sim_info_t*) {
    t_in_group = false;
    if (!eventually([] { return !g_lanes.connecting_apart.load(); })) {
        g_lanes.waited_in_vain = true;
    }
    return 0;
}

// Every byte of the sum that a lane's warm-up asks for.
inline int all_reduce(const void* send, void* receive, size_t count, int type, int op,
                      deft_nccl_comm_t, deft_cuda_stream_t stream) {
    if (t_in_group) {
        return ++g_lanes.simulated, 0;
    }
    auto* const on = reinterpret_cast<CUstream>(stream);
    if (type == ncclUint8 && op == ncclMin) {  // the ranks ask each other whether the plan goes on
        ++g_lanes.questions;
        if (g_lanes.unanswered) {
            cuLaunchHostFunc(
                on, [](void*) { eventually([] { return !g_lanes.unanswered.load(); }); }, nullptr);
        }
        const bool refused = g_lanes.refused;
        return refused ? cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(receive), 0, count, on)
                       : cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(receive),
                                           reinterpret_cast<CUdeviceptr>(send), count, on);
    }
    ++g_lanes.calling;
    if (!eventually([] { return !g_lanes.held_calls.load() && !g_lanes.connecting.load(); })) {
        g_lanes.waited_in_vain = true;
    }
    --g_lanes.calling;
    ++g_lanes.called;
    g_lanes.caller = std::this_thread::get_id();
    int priority = 99;
    cuStreamGetPriority(on, &priority);
    g_lanes.priorities.push_back(priority);
    g_lanes.asked.push_back({static_cast<std::size_t>(type), static_cast<std::size_t>(op), count});
    if (g_lanes.noting) {
        cuMemcpyDtoHAsync(&g_lanes.sent.emplace_back(), reinterpret_cast<CUdeviceptr>(send), 4, on);
    }
    if (g_lanes.held_transfers) {
        cuLaunchHostFunc(
            on, [](void*) { eventually([] { return !g_lanes.held_transfers.load(); }); }, nullptr);
    }
    if (g_lanes.ns_per_kib > 0) {
        const std::int64_t takes = static_cast<std::int64_t>(count) * 4 / 1024 * g_lanes.ns_per_kib;
        cuLaunchHostFunc(
            on,
            [](void* ns) {
                std::this_thread::sleep_for(
                    std::chrono::nanoseconds(reinterpret_cast<std::intptr_t>(ns)));
            },
            reinterpret_cast<void*>(takes));
    }
    const std::size_t element = type == ncclFloat16 || type == ncclBfloat16 ? 2
                                : type == ncclFloat64                       ? 8
                                                                            : 4;
    return cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(receive), kRanks, count * element, on);
}

// What the companion says of a call, that it is one of an iteration's two. Module 0: nothing.
inline std::uint64_t mark_of(std::uint32_t module, std::uint64_t ordinal) {
    const auto place = static_cast<std::uint32_t>(ordinal % 2);
    return module == 0 ? 0 : pack({DEFT_SUM_BUCKET, module, place, place == 1});
}

// The job's own calls.
class Job {
public:
    // Of so many numbers at most.
    explicit Job(std::uint64_t largest = kCounts[1]) : largest_(largest) {
        EXPECT_EQ(cuMemAlloc(&buffer_, largest * 4), CUDA_SUCCESS);
        EXPECT_EQ(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        fill(0);
    }
    ~Job() {
        EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        cuStreamDestroy(stream_);
        cuMemFree(buffer_);
    }
    Job(const Job&) = delete;
    // Whose buckets the gradients are from now on.
    void mark(std::uint32_t module) { module_ = module; }
    // What the gradients are from now on, in every byte.
    void fill(unsigned char byte) {
        EXPECT_EQ(cuMemsetD8Async(buffer_, byte, largest_ * 4, stream_), CUDA_SUCCESS);
    }
    // One gradient. True if the plan in force takes it, false if it is forwarded.
    bool make(Director& director, std::uint64_t ordinal, std::uint64_t count) {
        Call call;
        call.count = count;
        call.type = DEFT_NCCL_FLOAT32;
        call.op = DEFT_NCCL_SUM;
        call.send = call.receive = reinterpret_cast<void*>(buffer_);
        call.mark = mark_of(module_, ordinal);
        int result = DEFT_NCCL_SUCCESS;
        const bool taken = director.all_reduce(
            call, ordinal, false, reinterpret_cast<deft_cuda_stream_t>(stream_), result);
        EXPECT_EQ(result, DEFT_NCCL_SUCCESS);
        return taken;
    }
    // One that the plan in force takes.
    void call(Director& director, std::uint64_t ordinal, std::uint64_t count) {
        EXPECT_TRUE(make(director, ordinal, count));
    }
    void iteration(Director& director, std::uint64_t& ordinal) {
        for (const std::uint64_t count : kCounts) {
            call(director, ordinal++, count);
        }
    }
    // One that no plan takes.
    void forwarded(Director& director, std::uint64_t& ordinal) {
        for (const std::uint64_t count : kCounts) {
            EXPECT_FALSE(make(director, ordinal++, count));
        }
    }

private:
    const std::uint64_t largest_;
    CUdeviceptr buffer_ = 0;
    CUstream stream_ = nullptr;
    std::uint32_t module_ = 0;
};

inline const NcclTable& fake_table() {
    static const NcclTable table = [] {
        NcclTable t;
        t.GetUniqueId = [](deft_nccl_unique_id_t*) {
            ++g_lanes.asking;
            eventually([] { return !g_lanes.held_ids.load(); });
            --g_lanes.asking;
            return 0;
        };
        t.CommInitRank = make;
        t.CommInitRankConfig = make_configured;
        t.AllReduce = all_reduce;
        t.GroupStart = [] { return t_in_group = true, 0; };
        t.GroupSimulateEnd = simulate_end;
        t.CommDestroy = [](deft_nccl_comm_t) {
            eventually([] { return !g_lanes.held_transfers.load(); });
            return ++g_lanes.destroyed, 0;
        };
        t.CommAbort = [](deft_nccl_comm_t) {
            if (g_lanes.calling > 0) {
                g_lanes.torn = true;
            }
            if (++g_lanes.told >= g_lanes.stuck) {
                g_lanes.held_transfers = false;
            }
            g_lanes.connecting = g_lanes.unanswered = g_lanes.connecting_apart = false;
            // NCCL frees memory now, for which CUDA waits until the device is idle.
            if (!eventually([] { return !g_lanes.job_stuck && g_lanes.told >= g_lanes.stuck; })) {
                g_lanes.waited_in_vain = true;
            }
            return ++g_lanes.aborted, 0;
        };
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

class OneRank : public ::testing::Test {
protected:
    void SetUp() override {
        CUcontext context = nullptr;
        ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        reset_lanes();
    }
    void TearDown() override {
        g_lanes.held = g_lanes.held_transfers = g_lanes.held_calls = g_lanes.job_stuck = false;
        g_lanes.unanswered = false;
        if (director_ != nullptr) {
            director_->end(false);
        }
    }

    // The director of this rank. Others join the scene by themselves, rank 0 first.
    void join(int rank) {
        agreement::Council* const council =
            agreement::test::kept(agreement::join(scene_.id, kRanks, rank, terms()));
        ASSERT_NE(council, nullptr);
        scene_.councils[static_cast<std::size_t>(rank)] = council;
        council->created();
        CommunicatorInfo info;
        info.table = &fake_table();
        info.serial = 1;
        info.rank = rank;
        info.nranks = kRanks;
        info.limits = tuning::read_job_limits();
        info.choices = choices_;
        static auto& never_freed = *new std::vector<Director*>;  // nor is it at exit
        never_freed.push_back(director_ = new Director(info, *council));
    }
    // An abort ends on threads of its own.
    bool lanes_aborted(int lanes) {
        return eventually([&] { return g_lanes.aborted == lanes && !director_->aborting(); });
    }
    // What the hook records of the job's next gradient. Those of one size share a buffer.
    CallRecord record(std::uint64_t ordinal, std::uint64_t count) const {
        CallRecord record;
        record.mark = mark_of(module_, ordinal);
        record.function = Function::AllReduce;
        record.count = count;
        record.buffer = 0x1000 * (count + 1);
        record.type = DEFT_NCCL_FLOAT32;
        record.op = DEFT_NCCL_SUM;
        record.in_place = true;
        record.nranks = kRanks;
        record.comm_serial = 1;
        record.ordinal = ordinal;
        return record;
    }

    Scene scene_{kRanks};
    Track track_;
    Director* director_ = nullptr;
    std::uint64_t ordinal_ = 0;  // of the job's next call
    ConfigChoices choices_;      // of the communicator's configuration
    std::uint32_t module_ = 0;   // whose buckets the calls are; 0: nobody has said
};

}  // namespace deft::director::test
