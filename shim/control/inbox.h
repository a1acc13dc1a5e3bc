// SPDX-License-Identifier: Apache-2.0
// What the council tells a rank, until the background thread takes it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "shim/agreement/council.h"
#include "shim/control/lane_set.h"
#include "shim/control/message.h"
#include "shim/control/plan_switch.h"
#include "shim/control/problem.h"
#include "shim/guard/guard.h"

namespace deft::director {

// Threads: the agreement thread puts in, the background thread takes out. Its lock is held for
// moments, and neither CUDA nor NCCL is called under it but to begin the abort of a lane.
class Inbox {
public:
    Inbox(PlanSwitch& plan_switch, LaneSet& lanes) : switch_(plan_switch), lanes_(lanes) {}
    Inbox(const Inbox&) = delete;

    // Agreement: as the functions of agreement::Member.
    agreement::Answer prepare(const agreement::Proposal& proposal) noexcept;
    void decided(std::uint64_t serial, bool commit) noexcept;
    void heard(int rank, std::span<const std::byte> report) noexcept;
    void close() noexcept;

    // All of the following: background.

    // Hands each order that has been committed to `take(Order, bool discard)`, under the lock.
    // discard: what was staged before gives its memory back, and cannot be armed any more.
    template <class Take>
    void take_orders(Take&& take) {
        const MutexLock lock(mutex_);
        const bool arming = arming_locked();
        for (Order& order : orders_) {
            const bool wanted = order_discards(order) && ready_ != nullptr;
            const bool discard = wanted && !arming;
            if (discard) {
                unstage_locked();
            }
            discard_later_ = discard_later_ || (wanted && arming);
            take(std::move(order), discard);
        }
        orders_.clear();
    }
    // Such an order came while what is staged was armed, and then that came to nothing: this rank
    // came to the call later than the leader. True: it gives its memory back now.
    bool take_discard();
    // The council has closed.
    bool closed();

    // An executor is ready, and the leader may arm it.
    void stage(std::uint64_t serial, executor::Executor* ready);
    // Unless it will come into force: what is staged cannot be armed any more. False: it will.
    bool unstage(const executor::Executor* staged);

    // What has been decided about switches and has not been taken note of: what is staged comes
    // into force, calls are forwarded.
    struct Switches {
        bool armed = false;
        bool forward = false;
    };
    Switches switches();
    bool armed();
    // Background: a switch has come to nothing at its call; the leader may name another.
    void note_voided(std::uint64_t serial);
    // Such a decision has been taken note of.
    void in_force();
    void forwarding(bool armed);
    // Leader: a proposal was cancelled, since it was last asked.
    bool take_arm_cancelled();
    bool take_forward_cancelled();

    // The lanes of that staging are open, for calls of this series, and may be tried; 0: none are.
    void opened(std::uint64_t stage, Series series);
    // How long the trials may hold a call of the job up, as the leader has said.
    std::chrono::milliseconds patience();
    // Leader: a call that was named for trials came to nothing, since it was last asked.
    bool take_rehearsal_cancelled();

    // Leader: a staging begins, of which nothing has been answered.
    void begin_staging();
    // Leader: how many ranks have answered what about this staging.
    struct Tally {
        std::size_t learned = 0;
        std::size_t opened = 0;  // with those that are ready
        std::size_t ready = 0;
        Problem refused;             // the first rank's, or one that will not pass
        bool lanes_missing = false;  // not every rank makes its lanes
    };
    Tally tally(std::uint64_t stage);
    // Leader: the ranks' latest, by rank.
    std::map<int, Proof> proofs();
    // Leader: the call that the rank which is furthest has come to, at least.
    std::uint64_t furthest();

    // Leader: what ranks have measured, by rank, as it came.
    using Measured = std::vector<std::pair<int, guard::Statistics>>;
    Measured take_measured();
    // Leader: what ranks' companions have told of the training, by rank, as it came.
    using Trained = std::vector<std::pair<int, guard::Training>>;
    Trained take_trained();
    // Leader: the rank that wants its lanes to go, and why, since it was last asked.
    struct PressedRank {
        int rank = -1;
        Pressure why = Pressure::Memory;
    };
    std::optional<PressedRank> take_pressed();
    // Leader: the first of the ranks for which the kill switch is there; -1: none.
    int halted();

    // Nothing is planned any more.
    void forget();

private:
    bool arming_locked() const DEFT_REQUIRES(mutex_);
    bool order_discards(const Order& order) const DEFT_REQUIRES(mutex_);
    void unstage_locked() DEFT_REQUIRES(mutex_);
    bool lanes_sound();
    agreement::Answer prepare_rehearsal(const agreement::Proposal& proposal, Order order);

    PlanSwitch& switch_;
    LaneSet& lanes_;

    Mutex mutex_;
    // By serial, until decided.
    std::vector<std::pair<std::uint64_t, Order>> prepared_ DEFT_GUARDED_BY(mutex_);
    std::vector<Order> orders_ DEFT_GUARDED_BY(mutex_);      // committed, but no switches
    std::map<int, Staged> answers_ DEFT_GUARDED_BY(mutex_);  // leader: by rank
    std::map<int, Proof> proofs_ DEFT_GUARDED_BY(mutex_);    // leader: by rank
    Measured measured_ DEFT_GUARDED_BY(mutex_);
    Trained trained_ DEFT_GUARDED_BY(mutex_);
    std::optional<PressedRank> pressed_ DEFT_GUARDED_BY(mutex_);
    std::set<int> halted_ DEFT_GUARDED_BY(mutex_);           // ranks
    std::uint64_t ready_stage_ DEFT_GUARDED_BY(mutex_) = 0;  // of the staging that can be armed
    executor::Executor* ready_ DEFT_GUARDED_BY(mutex_) = nullptr;
    bool discard_later_ DEFT_GUARDED_BY(mutex_) = false;  // what is staged
    bool armed_committed_ DEFT_GUARDED_BY(mutex_) = false;
    std::uint64_t armed_serial_ DEFT_GUARDED_BY(mutex_) = 0;  // of the proposal
    bool forward_committed_ DEFT_GUARDED_BY(mutex_) = false;
    bool arm_cancelled_ DEFT_GUARDED_BY(mutex_) = false;
    bool forward_cancelled_ DEFT_GUARDED_BY(mutex_) = false;
    bool stage_cancelled_ DEFT_GUARDED_BY(mutex_) = false;
    std::uint64_t opened_stage_ DEFT_GUARDED_BY(mutex_) = 0;
    Series opened_series_ DEFT_GUARDED_BY(mutex_) = Series::Sums;
    std::chrono::milliseconds patience_ DEFT_GUARDED_BY(mutex_){};
    bool rehearsal_cancelled_ DEFT_GUARDED_BY(mutex_) = false;
    bool closed_ DEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace deft::director
