// SPDX-License-Identifier: Apache-2.0
// NCCL connects a communicator for an algorithm in the call that first needs it (from 2.22 on), and
// waits there until all ranks have come. It does so for a group that is only simulated, too: so a
// lane is connected where nothing is launched, and no call of the job's waits for it.
#include <time.h>

#include <cstddef>
#include <memory>

#include "base/thread.h"
#include "shim/executor/lanes.h"

namespace deft::executor {
namespace {

// ncclSimInfo_t, as every release from 2.22 on has it.
struct Simulation {
    std::size_t size = sizeof(Simulation);
    std::uint32_t magic = 0x74685283;
    std::uint32_t version = 0;
    float estimated = -1;
};

// The oldest release whose simulated groups are known to connect, and to leave nothing behind.
constexpr int kConnects = 22800;

}  // namespace

// Who waits inside NCCL, where no deadline reaches. Lanes outlive it: it counts in their users_.
struct Lane::Connecting {
    Lane* lane = nullptr;
    std::atomic<int> result{DEFT_NCCL_IN_PROGRESS};

    static void* run(void* argument) {
        const std::unique_ptr<std::shared_ptr<Connecting>> own(
            static_cast<std::shared_ptr<Connecting>*>(argument));
        Lane& lane = *(*own)->lane;
        int result = DEFT_NCCL_UNHANDLED_CUDA_ERROR;
        {
            const cuda::Current current(*lane.driver_.driver, lane.context_);
            const cuda::Relaxed relaxed(*lane.driver_.driver);  // NCCL allocates
            if (current) {
                result = lane.simulate_trials();
            }
        }
        (*own)->result.store(result, std::memory_order_release);
        lane.users_.fetch_sub(1);
        return nullptr;
    }
};

bool Lane::connect(std::string& problem) noexcept {
    constexpr const char* kStep = "its connections";
    if (nccl_.version < kConnects || nccl_.GroupStart == nullptr ||
        nccl_.GroupSimulateEnd == nullptr) {
        return true;
    }
    const auto until = std::chrono::steady_clock::now() + config_.deadline;
    try {
        const auto connecting = std::make_shared<Connecting>();
        connecting->lane = this;
        auto own = std::make_unique<std::shared_ptr<Connecting>>(connecting);
        users_.fetch_add(1);
        if (start_thread("deft-lane", 0, Connecting::run, own.get()) != 0) {
            users_.fetch_sub(1);
            return failed(problem, kStep, DEFT_NCCL_SYSTEM_ERROR);
        }
        static_cast<void>(own.release());  // the thread's
        int result = DEFT_NCCL_IN_PROGRESS;
        while ((result = connecting->result.load(std::memory_order_acquire)) ==
               DEFT_NCCL_IN_PROGRESS) {
            if (stop_.load() || std::chrono::steady_clock::now() >= until) {
                return failed(problem, kStep, DEFT_NCCL_SUCCESS);
            }
            const timespec pause{0, 500'000};
            ::nanosleep(&pause, nullptr);
        }
        return result == DEFT_NCCL_SUCCESS || failed(problem, kStep, result);
    } catch (...) {
        return failed(problem, kStep, DEFT_NCCL_SYSTEM_ERROR);
    }
}

// One group for each call, as they are made later.
int Lane::simulate_trials() noexcept {
    TrialRun& run = *run_;
    run.comm = comm();
    int result = run.comm != nullptr ? DEFT_NCCL_SUCCESS : DEFT_NCCL_INVALID_USAGE;
    for (const std::size_t bytes : run.checked) {
        result = simulate(run, {DEFT_NCCL_UINT32, DEFT_NCCL_SUM, 4}, bytes, result);
    }
    for (const TrialCall& call : run.rehearsal) {
        result = simulate(run, call.kind, call.bytes, result);
    }
    return stop_.load() ? DEFT_NCCL_INVALID_USAGE : result;
}

// `before`: what became of those before it.
int Lane::simulate(const TrialRun& run, const Reduction& kind, std::size_t bytes,
                   int before) noexcept {
    if (before != DEFT_NCCL_SUCCESS || stop_.load()) {
        return before;
    }
    if (const int started = nccl_.GroupStart(); started != DEFT_NCCL_SUCCESS) {
        return started;
    }
    Simulation simulation;
    const int made = make_call(run, kind, bytes);
    const int ended = nccl_.GroupSimulateEnd(reinterpret_cast<deft_nccl_sim_info_t*>(&simulation));
    return made != DEFT_NCCL_SUCCESS ? made : ended;
}

}  // namespace deft::executor
