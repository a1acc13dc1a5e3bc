// SPDX-License-Identifier: Apache-2.0
#include "shim/control/inbox.h"

#include <algorithm>
#include <string>

namespace deft::director {
namespace {

bool is_switch(Kind kind) {
    return kind == Kind::Arm || kind == Kind::Forward;
}

// The leader has given a staging up whether or not all ranks have answered.
bool holds_anyway(Kind kind) {
    return kind == Kind::Drop || kind == Kind::Discard || kind == Kind::Close;
}

}  // namespace

agreement::Answer Inbox::prepare(const agreement::Proposal& proposal) noexcept {
    using agreement::Answer;
    Order order;
    try {
        if (switch_.ended() || !decode(proposal.body, order)) {
            return Answer::No;
        }
        if (order.kind == Kind::Rehearse) {
            return prepare_rehearsal(proposal, std::move(order));
        }
        const bool arm = order.kind == Kind::Arm;
        const bool answers = !arm || lanes_sound();
        const MutexLock lock(mutex_);
        if (!is_switch(order.kind)) {
            orders_.reserve(orders_.size() + prepared_.size() + 1);  // decided() must not throw
            prepared_.emplace_back(proposal.serial, std::move(order));
            return Answer::Yes;
        }
        const bool other = arm && ready_stage_ != order.stage;
        const NamedSwitch named{proposal.serial, proposal.switch_call, arm ? order.begin : 0,
                                order.ordinal, arm ? ready_ : nullptr};
        prepared_.emplace_back(proposal.serial, std::move(order));
        // This rank has yet to come to the last switch, or has other plans, or cannot be asked.
        if (switch_.committed_ahead() || other || !answers) {
            return Answer::No;
        }
        return switch_.name(named) ? Answer::Yes : Answer::No;
    } catch (...) {
        return Answer::No;
    }
}

agreement::Answer Inbox::prepare_rehearsal(const agreement::Proposal& proposal, Order order) {
    using agreement::Answer;
    const MutexLock lock(mutex_);
    const bool mine = opened_stage_ != 0 && opened_stage_ == order.stage;
    patience_ = std::chrono::milliseconds(order.patience_ms);
    prepared_.emplace_back(proposal.serial, std::move(order));
    return mine && switch_.name_trials(proposal.serial, opened_series_, proposal.switch_call)
               ? Answer::Yes
               : Answer::No;
}

// A network that has failed costs a plan before it begins. NCCL is asked without the lock; a lane
// lives as long as this.
bool Inbox::lanes_sound() {
    std::vector<executor::Lane*> lanes;
    {
        const MutexLock lock(mutex_);
        if (ready_ != nullptr) {
            lanes = ready_->all_lanes();
        }
    }
    return std::all_of(lanes.begin(), lanes.end(),
                       [](executor::Lane* lane) { return lane->sound(); });
}

void Inbox::decided(std::uint64_t serial, bool commit) noexcept {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(prepared_.begin(), prepared_.end(),
                                    [serial](const auto& p) { return p.first == serial; });
    if (found == prepared_.end()) {
        return;
    }
    Order order = std::move(found->second);
    prepared_.erase(found);
    if (order.kind == Kind::Rehearse) {
        if (commit) {
            switch_.trials().commit(serial);
        } else {
            switch_.trials().cancel(serial);
            rehearsal_cancelled_ = true;
        }
        return;
    }
    if (!is_switch(order.kind)) {
        if (commit && order.kind == Kind::Drop) {
            lanes_.drop_stage(order.stage);
        }
        if (!commit && !holds_anyway(order.kind)) {
            stage_cancelled_ = true;
        } else {
            orders_.push_back(std::move(order));  // within what prepare() has reserved
        }
        return;
    }
    const bool arm = order.kind == Kind::Arm;
    if (commit) {
        switch_.commit();
        armed_serial_ = arm ? serial : armed_serial_;
        (arm ? armed_committed_ : forward_committed_) = true;
    } else {
        switch_.cancel(serial);
        (arm ? arm_cancelled_ : forward_cancelled_) = true;
    }
}

void Inbox::heard(int rank, std::span<const std::byte> report) noexcept {
    try {
        Staged staged;
        if (decode(report, staged)) {
            const MutexLock lock(mutex_);
            if (staged.step == Step::Refused) {
                lanes_.drop_stage(staged.stage);  // the background thread may wait for this rank
            }
            answers_[rank] = std::move(staged);
            return;
        }
        if (Pressed pressed; decode(report, pressed)) {
            const MutexLock lock(mutex_);
            pressed_ = PressedRank{rank, pressed.why};
            return;
        }
        Proof proof;
        if (decode(report, proof)) {
            const MutexLock lock(mutex_);
            proofs_[rank] = std::move(proof);
            return;
        }
        if (Halted halted; decode(report, halted)) {
            const MutexLock lock(mutex_);
            if (halted.on) {
                halted_.insert(rank);
            } else {
                halted_.erase(rank);
            }
            return;
        }
        std::vector<guard::Training> told;
        if (guard::decode(report, told)) {
            constexpr std::size_t kMostTrained = 65536;  // of many ranks, and a tick apart
            const MutexLock lock(mutex_);
            for (const guard::Training& one : told) {
                if (trained_.size() < kMostTrained) {
                    trained_.emplace_back(rank, one);
                }
            }
            return;
        }
        guard::Statistics statistics;
        constexpr std::size_t kMost = 1024;  // a tick apart; more than that is not needed
        if (guard::decode(report, statistics)) {
            const MutexLock lock(mutex_);
            if (measured_.size() < kMost) {
                measured_.emplace_back(rank, statistics);
            }
        }
    } catch (...) {
    }
}

void Inbox::close() noexcept {
    const MutexLock lock(mutex_);
    closed_ = true;
}

bool Inbox::closed() {
    const MutexLock lock(mutex_);
    return closed_;
}

bool Inbox::arming_locked() const {
    return armed_committed_ || std::any_of(prepared_.begin(), prepared_.end(), [](const auto& p) {
               return p.second.kind == Kind::Arm;
           });
}

// What has been staged and will not be armed gives its memory back at once: the job may need it,
// and so may what is staged next.
bool Inbox::order_discards(const Order& order) const {
    const bool given_up = order.kind == Kind::Drop || order.kind == Kind::Discard;
    return order.kind == Kind::Stage || (given_up && order.stage == ready_stage_);
}

void Inbox::unstage_locked() {
    ready_stage_ = 0;
    ready_ = nullptr;
    discard_later_ = false;
}

bool Inbox::take_discard() {
    const MutexLock lock(mutex_);
    const bool discard = discard_later_ && !arming_locked() && !switch_.uses(ready_);
    if (discard) {
        unstage_locked();
    }
    return discard;
}

void Inbox::stage(std::uint64_t serial, executor::Executor* ready) {
    const MutexLock lock(mutex_);
    ready_stage_ = serial;
    ready_ = ready;
    discard_later_ = false;
}

bool Inbox::unstage(const executor::Executor* staged) {
    const MutexLock lock(mutex_);
    if (armed_committed_ || switch_.uses(staged)) {
        return false;
    }
    unstage_locked();
    return true;
}

Inbox::Switches Inbox::switches() {
    const MutexLock lock(mutex_);
    return {armed_committed_, forward_committed_};
}

bool Inbox::armed() {
    return switches().armed;
}

void Inbox::note_voided(std::uint64_t serial) {
    const MutexLock lock(mutex_);
    if (armed_committed_ && armed_serial_ == serial) {
        armed_committed_ = false;
        arm_cancelled_ = true;
    }
}

void Inbox::in_force() {
    const MutexLock lock(mutex_);
    armed_committed_ = false;
    unstage_locked();
}

void Inbox::forwarding(bool armed) {
    const MutexLock lock(mutex_);
    forward_committed_ = false;
    if (armed) {
        armed_committed_ = false;
        unstage_locked();
    }
}

bool Inbox::take_arm_cancelled() {
    const MutexLock lock(mutex_);
    return std::exchange(arm_cancelled_, false);
}

bool Inbox::take_forward_cancelled() {
    const MutexLock lock(mutex_);
    return std::exchange(forward_cancelled_, false) && !forward_committed_;
}

void Inbox::opened(std::uint64_t stage, Series series) {
    const MutexLock lock(mutex_);
    opened_stage_ = stage;
    opened_series_ = series;
}

std::chrono::milliseconds Inbox::patience() {
    const MutexLock lock(mutex_);
    return patience_;
}

bool Inbox::take_rehearsal_cancelled() {
    const MutexLock lock(mutex_);
    return std::exchange(rehearsal_cancelled_, false);
}

void Inbox::begin_staging() {
    const MutexLock lock(mutex_);
    rehearsal_cancelled_ = false;
    answers_.clear();
    stage_cancelled_ = false;
}

Inbox::Tally Inbox::tally(std::uint64_t stage) {
    Tally tally;
    const MutexLock lock(mutex_);
    for (const auto& [rank, staged] : answers_) {
        if (staged.stage != stage) {
            continue;
        }
        tally.learned += staged.step == Step::Learned ? 1 : 0;
        tally.ready += staged.step == Step::Ready ? 1 : 0;
        tally.opened += staged.step == Step::Ready || staged.step == Step::Opened ? 1 : 0;
        const bool refused = staged.step == Step::Refused;
        if (refused) {
            tally.lanes_missing = true;
        }
        // A problem that will not pass is the one to tell.
        if ((refused || staged.step == Step::Unfit) &&
            (tally.refused.empty() || !staged.may_pass)) {
            tally.refused.why = "rank " + std::to_string(rank) + ": " + staged.reason;
            tally.refused.may_pass = staged.may_pass;
        }
        if (refused && staged.timed_out) {
            tally.refused.timed_out = true;
        }
    }
    if (tally.refused.empty() && stage_cancelled_) {
        tally.refused.why = "a rank did not answer";
        tally.refused.may_pass = true;
        tally.lanes_missing = true;
    }
    return tally;
}

std::map<int, Proof> Inbox::proofs() {
    const MutexLock lock(mutex_);
    return proofs_;
}

std::uint64_t Inbox::furthest() {
    std::uint64_t furthest = switch_.calls();
    const MutexLock lock(mutex_);
    for (const auto& [rank, staged] : answers_) {
        furthest = std::max(furthest, staged.ordinal);
    }
    return furthest;
}

std::optional<Inbox::PressedRank> Inbox::take_pressed() {
    const MutexLock lock(mutex_);
    return std::exchange(pressed_, std::nullopt);
}

int Inbox::halted() {
    const MutexLock lock(mutex_);
    return halted_.empty() ? -1 : *halted_.begin();
}

Inbox::Measured Inbox::take_measured() {
    const MutexLock lock(mutex_);
    return std::exchange(measured_, {});
}

Inbox::Trained Inbox::take_trained() {
    const MutexLock lock(mutex_);
    return std::exchange(trained_, {});
}

void Inbox::forget() {
    const MutexLock lock(mutex_);
    trained_ = {};
    measured_ = {};
    answers_.clear();
    proofs_.clear();
}

}  // namespace deft::director
