// SPDX-License-Identifier: Apache-2.0
// A lane: a communicator of our own with the same members as the job's, and a stream to use it on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

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
    std::chrono::milliseconds deadline{60000};    // of open() and of warm_up(), each
    std::size_t warm_up_bytes = 4 * 1024 * 1024;  // largest size sent by warm_up()
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
    // Makes NCCL connect what it would connect at first use: all-reduces of three sizes, checked.
    // Collective; waits as open() does.
    bool warm_up(std::string& problem) noexcept;
    // And what it would connect when a hook first asks for one of these: from 2.22 on it does so
    // for each algorithm, which it chooses by function, type, operation and size. Of each kind
    // sizes up to that of `largest` bytes of all ranks, 64 MiB at most. Collective, on a lane that
    // nobody uses yet; waits as open() does.
    bool rehearse(std::span<const Reduction> kinds, std::size_t largest,
                  std::string& problem) noexcept;
    // Times all-reduces of two sizes, one at a time, on the warm lane; the shortest count. The
    // job's own transfers may run beside it; where they take the same links, `pause` between two
    // calls lets some of the calls meet these idle. Collective; waits as open() does. 17 MiB
    // travel, and 20 with pauses.
    bool measure(LaneSpeed& speed, std::string& problem,
                 std::chrono::milliseconds pause = {}) noexcept;
    // Ends the communicator whatever it is doing. Any thread, any state, any number of times.
    void abort() noexcept;
    // Makes open() and warm_up() return soon; the lane is good for nothing after it but abort().
    // Any thread; waits for nobody.
    void give_up() noexcept { stop_.store(true); }
    // Waits until nothing is in flight, or the lane is aborted; one that has failed it aborts.
    void drain() noexcept;
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
    class Scratch;   // device memory for the lane's own all-reduces
    bool ends(cuda::DevicePointer memory, const Reduction& kind, std::size_t bytes,
              std::string& problem) noexcept;
    int make_call(cuda::DevicePointer memory, const Reduction& kind, std::size_t bytes) noexcept;
    double seconds_of(cuda::DevicePointer memory, std::size_t bytes, int times,
                      std::chrono::milliseconds pause, std::string& problem) noexcept;
    bool sum_is_right(cuda::DevicePointer memory, std::size_t bytes, std::uint32_t* last,
                      std::string& problem) noexcept;
    bool idle_by(std::chrono::steady_clock::time_point deadline) noexcept;
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
    // Where warm_up() finds its sum. Pinned: a copy into other memory would wait without a
    // deadline. Kept until close().
    static constexpr std::size_t kWord = 4;  // bytes
    void* word_ = nullptr;                   // pinned; null: not needed yet
    std::unique_ptr<Ballot> ballots_[2];     // by question, from open() to close()
    std::atomic<deft_nccl_comm_t> comm_{nullptr};
    std::atomic<LaneState> state_{LaneState::Idle};
    std::atomic<bool> stop_{false};
    std::atomic<bool> timed_out_{false};
    std::atomic<bool> asked_{false};
    std::atomic<int> users_{0};     // calls on comm_ that must be over before it is destroyed
    std::atomic<int> aborting_{0};  // threads inside abort()
};

}  // namespace deft::executor
