// SPDX-License-Identifier: Apache-2.0
// Every rank's part in tuning NCCL for one communicator: its calls are carried out as the ranks
// have agreed, and it tells the leader how long they took. docs/tuner.md tells the whole course.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "shim/agreement/council.h"
#include "shim/control/communicator_info.h"
#include "shim/tuning/job_calls.h"
#include "shim/tuning/job_limits.h"
#include "shim/tuning/judgement.h"
#include "shim/tuning/tuning_switch.h"
#include "shim/tuning/turn.h"

namespace deft::director {

// Threads: hooks call call() and count(), the agreement thread prepare(), decided() and heard(),
// the background thread all others. The lock is held for moments, never by a hook.
class Tuner {
public:
    Tuner(const CommunicatorInfo& info, agreement::Council& council);
    Tuner(const Tuner&) = delete;

    // A call of the communicator that may be tuned; see TuningSwitch.
    bool call(const tuning::Key& key, const tuning::Counted& counted, tuning::Pick& pick) noexcept {
        return switch_.call(key, counted, pick);
    }
    bool count(const tuning::Counted& counted) noexcept { return switch_.count(counted); }
    bool failed() const noexcept { return switch_.failed(); }
    void end() noexcept {
        switch_.end();
        turn_.leave(this);
    }

    // Of a proposal that is about tuning; nothing: it is about something else.
    std::optional<agreement::Answer> prepare(const agreement::Proposal& proposal) noexcept;
    // False: it is about something else.
    bool decided(std::uint64_t serial, bool commit) noexcept;
    bool heard(int rank, std::span<const std::byte> report) noexcept;

    // What has become of calls, in their order but for those that are timed. Tells the leader of a
    // trial when it is through.
    void note(std::span<const tuning::SeenCall> calls);
    // How much memory the device has left, at that time of cuda::host_now(): connections of another
    // algorithm take some. 0: that is not known.
    void note_free_memory(std::uint64_t bytes, std::int64_t now_ns) noexcept;
    // Whether the job's iteration makes calls of this communicator alone: connections of another
    // algorithm are made in a call, for which operations of another communicator could wait.
    void note_alone(bool alone) noexcept { alone_.store(alone, std::memory_order_relaxed); }

    // For the leader's rank. What the job repeats, and has made among the last `within` calls.
    std::vector<tuning::JobCalls::Repeated> repeated(std::uint64_t often,
                                                     std::uint64_t within) const;
    // The ranks may still agree on a way for it.
    bool steady(const tuning::Key& key) const;
    std::uint64_t calls() const noexcept { return switch_.calls(); }
    // An order of this phase would find this rank ready.
    bool may_name(tuning::Phase phase) const noexcept;
    // As TuningSwitch's.
    bool history(std::uint64_t ordinal, std::uint64_t& history) const noexcept {
        return switch_.history(ordinal, history);
    }
    // What became of a proposal.
    enum class Outcome : std::uint8_t { Open, Committed, Cancelled };
    Outcome outcome(std::uint64_t serial) const;
    // Of the trial with that serial, once all ranks that tell have told.
    std::optional<tuning::Times> times(std::uint64_t serial) const;
    // Of a comparison: when its windows began, as far as they have.
    std::vector<std::int64_t> window_begins(std::uint64_t serial) const;
    // How long before their end this rank's host makes calls, at most, by those of the latest trial
    // that are timed. In nanoseconds.
    std::int64_t ahead_ns() const;
    // Calls made a second.
    double call_rate() const;

    // What the job has said stands.
    const char* job_names_algorithm() const noexcept { return info_.limits.names_algorithm; }
    // Releases before 2.27 were not looked at for what they make of a number above their own.
    bool limits_channels() const noexcept {
        constexpr int kChannelsSince = 22700;
        return info_.limits.channels || tuning::configuration_limits_channels() ||
               info_.table->version < kChannelsSince;
    }

    // On this rank another algorithm may be tried, as far as a look of late tells.
    bool room_for_algorithms() const noexcept;

private:
    struct Collected {
        tuning::Order order;
        tuning::Times times;        // of a trial
        std::uint64_t missing = 0;  // samples that have yet to come
        bool told = false;
        bool over = true;                  // every call that it is about has been made
        std::vector<std::int64_t> begins;  // of a comparison
    };

    bool same_calls(const tuning::Order& order) const;
    bool possible(const tuning::Order& order) const DEFT_REQUIRES(mutex_);
    bool possible(const tuning::Order& order, const tuning::Entry& entry) const
        DEFT_REQUIRES(mutex_);
    void collect(const tuning::Order& order) DEFT_REQUIRES(mutex_);
    void collect_sample(const tuning::SeenCall& call) DEFT_REQUIRES(mutex_);
    void collect_begin(const tuning::SeenCall& call) DEFT_REQUIRES(mutex_);
    bool trial_over() const DEFT_REQUIRES(mutex_);
    void note_over() DEFT_REQUIRES(mutex_);
    bool tells() const;

    const CommunicatorInfo& info_;
    agreement::Council& council_;
    tuning::TuningSwitch switch_;
    tuning::Turn& turn_;
    static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();
    std::atomic<std::int64_t> memory_seen_ns_{kNever};  // that there was enough of it
    std::atomic<bool> alone_{false};

    mutable Mutex mutex_;
    tuning::JobCalls job_ DEFT_GUARDED_BY(mutex_);
    // Never freed while hooks may come: they are few.
    std::vector<std::unique_ptr<tuning::Table>> tables_ DEFT_GUARDED_BY(mutex_);
    std::uint64_t prepared_ DEFT_GUARDED_BY(mutex_) = 0;  // serial of the one that is not decided
    std::map<std::uint64_t, bool> decisions_ DEFT_GUARDED_BY(mutex_);
    Collected collected_ DEFT_GUARDED_BY(mutex_);
    std::uint64_t latest_ DEFT_GUARDED_BY(mutex_) = 0;  // call that note() has heard of
    std::int64_t ahead_ns_ DEFT_GUARDED_BY(mutex_) = 0;
    std::map<int, tuning::Times> told_ DEFT_GUARDED_BY(mutex_);  // leader: of collected_, by rank
    std::int64_t rate_since_ns_ DEFT_GUARDED_BY(mutex_) = 0;
    std::uint64_t rate_calls_ DEFT_GUARDED_BY(mutex_) = 0;
    double rate_ DEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace deft::director
