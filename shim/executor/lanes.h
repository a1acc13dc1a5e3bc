// SPDX-License-Identifier: Apache-2.0
// A lane: a communicator of our own with the same members as the job's, and a stream to use it on.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shim/cuda/execution.h"
#include "shim/executor/ballot.h"
#include "shim/executor/nccl.h"
#include "shim/nccl/call.h"
#include "shim/nccl/config_choices.h"

namespace deft::executor {

struct LaneConfig {
    // Steers what the network plugin does with the lane; NCCL 2.26 and later. -1: not set. Only
    // for deft's own plugin: another one may take it for a traffic class of the wire.
    int traffic_class = -1;
    const char* net_name = nullptr;               // NCCL 2.17 and later; null: NCCL chooses
    int max_ctas = 0;                             // NCCL 2.17 and later; 0: as in `job`
    ConfigChoices job;                            // what the job's communicator has, as it is to
                                                  // hold for the lane
    int priority = 0;                             // of the stream: that of the job's
    std::chrono::milliseconds deadline{60000};    // of open(), connect() and the trials, each
    std::size_t warm_up_bytes = 4 * 1024 * 1024;  // largest size whose sum is checked
};

// A kind of call that a lane will be asked for.
struct Reduction {
    int type = DEFT_NCCL_FLOAT32;  // ncclDataType_t
    int op = DEFT_NCCL_SUM;        // ncclRedOp_t; of an all-gather it means nothing
    std::size_t element = 4;       // bytes
    Function function = Function::AllReduce;
    bool operator==(const Reduction&) const = default;
};

// What an all-reduce on a lane takes, as measured: a start and a time per byte, in seconds.
struct LaneSpeed {
    double start = 0;
    double per_byte = 0;
};

// From how long all-reduces of two sizes take. Where noise has made the small one take as long as
// the large one, a network is not taken to be infinitely fast.
LaneSpeed speed_from(std::size_t small_bytes, double small_seconds, std::size_t large_bytes,
                     double large_seconds) noexcept;

// What a new lane is asked for before a plan uses it. The same on all ranks.
struct Trials {
    std::vector<Reduction> kinds;  // what the job's gradients are
    std::size_t largest = 0;       // bytes of all ranks
    // It is timed, with 20 MiB: the job's own transfers may take the same links, and some of what
    // is timed has to meet these idle.
    bool timed = false;
};

// How a lane's trials stand. Refused: NCCL or the driver did, or a sum was wrong.
enum class TrialState : std::uint8_t { None, Prepared, Launching, Launched, Good, Refused };

// What the ranks ask each other over a lane.
enum class Question : std::uint8_t {
    Switches,  // does the plan go on, end or change, or does one begin?
    Unfit,     // is no rank's next call the one that the plan is for?
};

enum class LaneState { Idle, Opening, Ready, Failed, Aborted, Closed };
const char* to_string(LaneState state);

// Made and ended on a background thread, used by hooks. abort() may come from any thread in any
// state.
class Lane {
public:
    Lane(const Nccl& nccl, const cuda::Execution& driver, int device) noexcept;
    // Never calls NCCL or CUDA: at exit they may be gone. close() first, or the communicator and
    // what it has of the device are left behind.
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    // Creates communicator and stream. Collective over the ranks, in the same order on all. Waits,
    // at most config.deadline; abort() ends it early. False: `problem` says why, and nothing is
    // left behind.
    bool open(const deft_nccl_unique_id_t& id, int nranks, int rank, const LaneConfig& config,
              std::string& problem) noexcept;
    // Takes the memory that trials need. Background thread; waits for no other rank.
    bool prepare_trials(const Trials& trials, std::string& problem) noexcept;
    // Has NCCL connect what they need, where it can do so and launch nothing (2.28 and later). Else
    // it connects when they are launched. After prepare_trials(). Collective; background thread,
    // waits as open() does.
    bool connect(std::string& problem) noexcept;
    // Launches them all: all-reduces of three sizes, whose sums are checked; each kind of call at
    // sizes up to the largest, 64 MiB at most, because NCCL from 2.22 on connects for an algorithm
    // at its first use and chooses it by function, type, operation and size; and all-reduces of two
    // sizes that are timed. Collective: at the same place among the job's calls on all ranks, by
    // the thread that makes them. Waits for other ranks only as far as NCCL does to connect;
    // abort() ends that. Allocates nothing, and waits for nothing that it has launched. They begin
    // behind `after`, if it is not null: lanes that are tried at once would slow each other down.
    // Returns an event behind them, which is the lane's; null: there is none.
    cuda::Event launch_trials(cuda::Event after = nullptr) noexcept;
    // Good, once they are over and were right; `speed` is what was timed. Refused: `problem` says
    // why; so it is where they take longer than the deadline. Background thread; never waits.
    TrialState look_at_trials(LaneSpeed& speed, std::string& problem) noexcept;
    TrialState trials() const noexcept { return trial_state_.load(std::memory_order_acquire); }
    // Gives back what they hold of a lane that has been aborted, once nothing of it is in flight.
    // Background thread; never waits.
    void free_trials() noexcept;
    // All three in one, for whoever has no job beside it: waits until they are over.
    bool try_now(const Trials& trials, LaneSpeed& speed, std::string& problem) noexcept;
    // Ends the communicator whatever it is doing. Any thread, any state, any number of times.
    void abort() noexcept;
    // Makes open() return soon, and ends trials; the lane is good for nothing after it but abort().
    // Any thread; waits for nobody.
    void give_up() noexcept { stop_.store(true); }
    // Waits until nothing is in flight, or the lane is aborted; one that stands still it aborts.
    void drain() noexcept;
    // Something is in flight, and will be for ever: the lane has failed, or ranks have left it.
    bool stands_still() noexcept;
    // Destroys communicator and stream; drains it first, and waits for the other ranks as
    // ncclCommDestroy does. Background thread.
    void close() noexcept;

    // What close() does, on a lane that is idle, but for memory whose release waits for the whole
    // device: the job goes on, and close() comes later.
    void disconnect() noexcept;
    // Nothing is in flight. Background thread.
    bool idle() const noexcept;

    // Something is in flight. Any thread.
    bool busy() noexcept;

    // The ranks ask each other; see Ballot. NCCL's result: where it fails the others may wait in
    // vain. The thread of the gradient calls.
    int cast(Question question, Ballot::Word word) noexcept;
    // Failed: the lane has ended, or has an error.
    Ballot::Answer answer(Question question) noexcept;
    // They have. Whoever has the answer may be done before the others are: so the lane is closed,
    // not aborted.
    bool asked() const noexcept { return asked_.load(std::memory_order_relaxed); }
    // Of Question::Switches, as Ballot::doubt() and mark().
    void doubt_cast() noexcept;
    void mark_cast(cuda::Stream job) noexcept;
    // Background thread: such a cast waits for others that may not come, or will not.
    bool casts_in_doubt() noexcept;
    bool casts_alone(std::int64_t longest = Ballot::kLongest,
                     std::int64_t unmarked = Ballot::kNever) noexcept;

    LaneState state() const noexcept { return state_.load(std::memory_order_acquire); }
    bool ready() const noexcept { return state() == LaneState::Ready; }
    // NCCL's asynchronous error of the lane, DEFT_NCCL_SUCCESS if it is not open. Any thread.
    int async_error() noexcept;
    int error() noexcept;  // the same without "in progress"
    bool sound() noexcept { return ready() && error() == DEFT_NCCL_SUCCESS; }

    // What it was last asked for took longer than its deadline.
    bool timed_out() const noexcept { return timed_out_.load(); }

    // Valid while ready.
    // Sequentially consistent: a user counts itself in users_, then loads this; abort() takes it
    // away, then loads users_. So one of the two sees the other.
    deft_nccl_comm_t comm() const noexcept { return comm_.load(std::memory_order_seq_cst); }
    cuda::Stream stream() const noexcept { return stream_; }
    int device() const noexcept { return device_; }
    int nranks() const noexcept { return nranks_; }
    int rank() const noexcept { return rank_; }

private:
    struct Opening;  // what open() shares with the thread that waits inside NCCL
    static constexpr std::size_t kTrialSums = 3;
    static constexpr std::size_t kRounds = 4;  // the first may find other ranks not yet here
    static constexpr std::size_t kSmall = 4;   // of a round, which has one large call too
    static constexpr std::size_t kTimed = kRounds * (kSmall + 1);
    // Made before the job's call at which it is used, and given back when the trials are over.
    struct TrialCall {
        Reduction kind;
        std::size_t bytes = 0;  // of all ranks
    };
    struct TrialRun {
        Trials trials;
        std::array<std::size_t, kTrialSums> checked{};  // bytes of what is checked
        std::vector<TrialCall> rehearsal;
        std::size_t largest = 0;  // of the rehearsal
        cuda::DevicePointer memory = 0;
        bool pooled = false;
        // Where sums are found. Pinned: a copy into other memory would wait without a deadline.
        std::uint32_t* words = nullptr;
        cuda::Event marks[kTimed + 1] = {};  // around what is timed
        cuda::Event over = nullptr;          // behind it all
        // The launching thread's, and what it leaves.
        deft_nccl_comm_t comm = nullptr;
        const char* step = "";
        int result = DEFT_NCCL_SUCCESS;
        std::chrono::steady_clock::time_point launched;
    };
    struct Connecting;  // what connect() shares with the thread that waits inside NCCL
    int simulate_trials() noexcept;
    int simulate(const TrialRun& run, const Reduction& kind, std::size_t bytes,
                 int before) noexcept;
    void plan_trials(TrialRun& run) const;
    int make_call(const TrialRun& run, const Reduction& kind, std::size_t bytes) noexcept;
    bool launch_checked(TrialRun& run) noexcept;
    bool launch_rehearsal(TrialRun& run) noexcept;
    bool launch_timed(TrialRun& run) noexcept;
    bool note(const char* step, int result) noexcept;
    static bool is_large(std::size_t timed) noexcept;
    bool take_times(LaneSpeed& speed) noexcept;
    void drop_trials(bool idle) noexcept;
    bool failed(std::string& problem, const char* step, int result) noexcept;
    bool make_ballots();
    bool await(Opening& opening, std::chrono::steady_clock::time_point until, std::string& problem);
    template <class Result, class Do>
    Result with_ballot(Question question, Result otherwise, Do&& what) noexcept;

    const Nccl nccl_;
    const cuda::Execution& driver_;
    const int device_;
    LaneConfig config_{};
    int nranks_ = 0;
    int rank_ = 0;
    cuda::Context context_ = nullptr;
    cuda::Stream stream_ = nullptr;
    std::unique_ptr<TrialRun> run_;  // from prepare_trials() until they are over
    std::atomic<TrialState> trial_state_{TrialState::None};
    std::unique_ptr<Ballot> ballots_[2];  // by question, from open() to close()
    std::atomic<deft_nccl_comm_t> comm_{nullptr};
    std::atomic<LaneState> state_{LaneState::Idle};
    std::atomic<bool> stop_{false};
    std::atomic<bool> timed_out_{false};
    std::atomic<bool> asked_{false};
    std::atomic<int> users_{0};     // calls on comm_ that must be over before it is destroyed
    std::atomic<int> aborting_{0};  // threads inside abort()
};

}  // namespace deft::executor
