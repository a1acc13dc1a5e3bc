// SPDX-License-Identifier: Apache-2.0
// The lanes of one communicator: how they are opened, rehearsed, measured, published to the hooks,
// closed and aborted.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shim/control/communicator_info.h"
#include "shim/control/lane_memory.h"
#include "shim/control/message.h"
#include "shim/control/plan_switch.h"
#include "shim/control/problem.h"
#include "shim/executor/lanes.h"
#include "shim/executor/script.h"

namespace deft::director {

// Threads: "background" is the shim's background thread, or whoever holds the director's work lock.
// What says nothing is for any thread, and waits for nobody unless it says so. A lane is freed with
// this: a hook may ask it for its errors at any time.
class LaneSet {
public:
    static constexpr std::size_t kMost = 8;

    // Reads which networks DEFT_LANES names. On the application's thread, after NCCL's own start.
    LaneSet(const CommunicatorInfo& info, PlanSwitch& plan_switch);
    LaneSet(const LaneSet&) = delete;

    // Why lanes cannot be made beside this job; empty: they can.
    const std::string& obstacle() const { return obstacle_; }
    // Beside the job's own, by the names that NCCL has for them.
    const std::vector<std::string>& other_networks() const { return other_networks_; }
    const executor::Nccl& nccl() const { return nccl_; }

    // What executors hold of the lanes.
    struct InUse {
        std::size_t lanes = 0;  // the first so many
        bool staged = false;    // a staged executor is in force, or will be on this rank
    };

    // Background: why the job can't spare the memory of a first lane; empty: it can, or has one.
    std::string shortage() { return lanes_.empty() ? memory_.obstacle() : std::string(); }
    // Background: opens lanes as `order` says, for gradients of these shapes. Waits for the other
    // ranks. `before_each` is called before each wait. `measure`: what they take is timed too, on
    // all ranks or on none. The new ones have yet to be tried.
    Problem open(const Order& order, const std::vector<executor::Shape>& shapes, bool measure,
                 const InUse& in_use, const std::function<void()>& before_each);
    // Background: lanes were opened that have yet to be tried, or to pass.
    bool untried() const { return !new_lanes_.empty(); }
    // Background: whether the trials of the new lanes, which hooks launch, are over. They are good
    // lanes then, unless `problem` says why not. A hook that NCCL holds up for longer than
    // `patience` is released. Never waits.
    bool trials_over(std::chrono::nanoseconds patience, Problem& problem);
    // Background: nothing comes of the new lanes. They are aborted, unless the process ends.
    void abandon_untried() noexcept;
    // Background: ends the lanes from the keep-th on, and closes those whose time has come. Never
    // waits: an abort of the communicator has to reach them.
    void end_from(std::size_t keep, const InUse& in_use);
    void close_idle(const InUse& in_use);
    // Background: begins to abort a lane on which this rank has asked the others and they do not
    // ask, even one that a plan has used.
    void end_doubted();
    // Background: the open ones, the job's own network first.
    std::size_t size() const { return lanes_.size(); }
    std::vector<executor::Lane*> first(std::size_t count) const;
    // Background: what they take, as far as they were measured.
    const std::vector<executor::LaneSpeed>& speeds() const { return speeds_; }
    // Background: lanes are there, and should not be any longer; why.
    std::optional<Pressure> pressure() noexcept;
    // Background: all lanes that are open have been through what gradients of these shapes ask for.
    bool rehearsed(const std::vector<executor::Shape>& shapes) const;
    // Background: aborts a lane that failed in open(), unless the process ends.
    void abort_failed(executor::Lane& lane) noexcept;
    // Background, after the end of the communicator: waits as ncclCommDestroy does, or aborts.
    void close_all(bool abort) noexcept;

    // A rank has refused: no rank waits any longer for the lanes of that staging.
    void drop_stage(std::uint64_t stage) noexcept;
    // The process ends: a lane that is being made is given up, and none is begun any more.
    void leave_off() noexcept;
    // A lane is being made.
    bool opening() const noexcept { return opening_.load(std::memory_order_seq_cst) != nullptr; }
    // Waits a few seconds until the lane that is being made is there.
    void await_opening() const noexcept;
    // Aborts the lane that is being made.
    void abort_opening() noexcept;
    // The communicator ends: trials that are not over in a few seconds are given up with their
    // lanes. Waits for that.
    void end_trials() noexcept;

    // While one lives, aborting() holds.
    class Aborting {
    public:
        explicit Aborting(std::atomic<std::uint32_t>& count) noexcept : count_(count) {
            count_.fetch_add(1, std::memory_order_seq_cst);
        }
        ~Aborting() { count_.fetch_sub(1, std::memory_order_seq_cst); }
        Aborting(const Aborting&) = delete;

    private:
        std::atomic<std::uint32_t>& count_;
    };
    Aborting hold_aborting() noexcept { return Aborting(aborts_); }
    // Begins to abort every lane, each on a thread of its own.
    void abort_all() noexcept;
    bool aborting() const noexcept { return aborts_.load(std::memory_order_seq_cst) > 0; }
    // Waits until the lanes are aborted, a moment at most.
    void await_aborts() const noexcept;

    // NCCL finalizes the communicator in the background: merge_async_error() speaks for the lanes'
    // transfers too.
    void finalize_goes_on() noexcept { finalizing_.store(true, std::memory_order_release); }
    // An asynchronous error of a lane that has been in a plan in force, or `error` as it is; "in
    // progress" while a nonblocking finalize waits for the lanes.
    int merge_async_error(int error) noexcept;

private:
    Problem open_one(const deft_nccl_unique_id_t& id, const Order& order,
                     const std::vector<executor::Shape>& shapes, bool measure,
                     executor::LaneConfig config, const std::function<void()>& before_each);
    Problem configure(executor::LaneConfig& config) const;
    void launch_trials() noexcept;
    void drain_all(bool abort) noexcept;
    bool held_up(std::chrono::nanoseconds patience) const noexcept;
    void publish() noexcept;
    Problem failed_to_open(std::unique_ptr<executor::Lane> lane, Problem problem);
    void withdraw(const executor::Lane& lane) noexcept;
    void begin_abort(executor::Lane& lane) noexcept;
    void abort_untried() noexcept;
    void await_hooks() const noexcept;
    void tell_failed(std::size_t lane, int error) noexcept;
    bool leaving_off() const noexcept { return leaving_off_.load(std::memory_order_seq_cst); }

    const CommunicatorInfo& info_;
    PlanSwitch& switch_;
    const executor::Nccl nccl_;
    const std::vector<std::string> other_networks_;  // DEFT_LANES, as far as they can be had
    const std::string obstacle_;

    std::array<std::atomic<executor::Lane*>, kMost> published_{};  // the open ones
    std::atomic<executor::Lane*> opening_{nullptr};
    // Open, and not tried yet. From before a call is named for that until they have passed or are
    // being aborted.
    std::array<std::atomic<executor::Lane*>, kMost> untried_{};
    std::atomic<std::int64_t> launching_ns_{0};  // since when a hook launches their trials; 0: none
    std::atomic<std::uint64_t> opening_stage_{0};  // its staging
    std::atomic<std::uint64_t> dropped_stage_{0};
    std::atomic<bool> finalizing_{false};
    std::atomic<bool> leaving_off_{false};
    std::atomic<bool> failed_told_{false};
    std::atomic<std::uint32_t> aborts_{0};  // of lanes, that are not over

    // Background.
    std::vector<std::unique_ptr<executor::Lane>> lanes_;      // the job's own network first
    std::vector<executor::LaneSpeed> speeds_;                 // theirs, where they were measured
    std::vector<std::unique_ptr<executor::Lane>> new_lanes_;  // untried_
    std::vector<executor::LaneSpeed> new_speeds_;
    std::vector<std::unique_ptr<executor::Lane>> closing_;  // not needed, still in use
    std::vector<std::unique_ptr<executor::Lane>> ended_;    // other threads may know them
    // What all lanes that are there have been rehearsed with, and the most bytes.
    std::vector<executor::Reduction> rehearsed_;
    std::size_t rehearsed_bytes_ = 0;
    LaneMemory memory_;
    std::int64_t on_reserve_ns_ = 0;  // since when links in reserve carry; 0: they do not
    std::int64_t pressure_asked_ns_ = 0;
};

}  // namespace deft::director
