// SPDX-License-Identifier: Apache-2.0
// The hooks' and the council's side of the director; course.cpp has the background thread's.
#include "shim/director/director.h"

#include <algorithm>

#include "topology/base/log.h"

namespace deft::director {

Director::Director(const CommunicatorInfo& info, agreement::Council& council)
    : info_(info),
      council_(council),
      switch_(info.rank,
              [&council](std::uint64_t serial, agreement::Clock::time_point deadline) {
                  return council.wait_decision(serial, deadline);
              }),
      lanes_(info_, switch_) {
    council_.attach(this);
}

agreement::Answer Director::prepare(const agreement::Proposal& proposal) noexcept {
    Order order;
    try {
        if (ended() || !decode(proposal.body, order)) {
            return agreement::Answer::No;
        }
        const std::lock_guard lock(inbox_mutex_);
        if (order.kind != Kind::Arm && order.kind != Kind::Forward) {
            orders_.reserve(orders_.size() + prepared_.size() + 1);  // decided() must not throw
            prepared_.emplace_back(proposal.serial, std::move(order));
            return agreement::Answer::Yes;
        }
        const Kind kind = order.kind;
        const std::uint64_t stage = order.stage;
        const std::uint64_t named = order.ordinal;
        prepared_.emplace_back(proposal.serial, std::move(order));
        if (switch_.committed_ahead()) {
            return agreement::Answer::No;  // this rank has yet to come to the last switch
        }
        executor::Executor* next = nullptr;
        if (kind == Kind::Arm) {
            if (staged_ready_ != stage) {
                return agreement::Answer::No;
            }
            next = staged_pointer_;
        }
        return switch_.name({proposal.serial, proposal.switch_call, named, next})
                   ? agreement::Answer::Yes
                   : agreement::Answer::No;
    } catch (...) {
        return agreement::Answer::No;
    }
}

void Director::decided(std::uint64_t serial, bool commit) noexcept {
    const std::lock_guard lock(inbox_mutex_);
    const auto found = std::find_if(prepared_.begin(), prepared_.end(),
                                    [serial](const auto& p) { return p.first == serial; });
    if (found == prepared_.end()) {
        return;
    }
    Order order = std::move(found->second);
    prepared_.erase(found);
    if (order.kind != Kind::Arm && order.kind != Kind::Forward) {
        if (commit && order.kind == Kind::Drop) {
            lanes_.drop_stage(order.stage);
        }
        // The leader has given up that staging whether or not all ranks have answered.
        const bool over =
            order.kind == Kind::Drop || order.kind == Kind::Discard || order.kind == Kind::Close;
        stage_cancelled_ = stage_cancelled_ || (!commit && !over);
        if (commit || over) {
            orders_.push_back(std::move(order));  // within what prepare() has reserved
        }
        return;
    }
    if (commit) {
        switch_.commit();
        (order.kind == Kind::Arm ? armed_committed_ : forward_committed_) = true;
    } else {
        switch_.cancel(serial);
        (order.kind == Kind::Arm ? arm_cancelled_ : forward_cancelled_) = true;
    }
}

void Director::heard(int rank, std::span<const std::byte> report) noexcept {
    try {
        Staged staged;
        if (decode(report, staged)) {
            const std::lock_guard lock(inbox_mutex_);
            if (staged.step == Step::Refused) {
                lanes_.drop_stage(staged.stage);  // tick() may be waiting for this rank
            }
            answers_[rank] = std::move(staged);
            return;
        }
        guard::Statistics statistics;
        constexpr std::size_t kMost = 1024;  // a tick apart; more than that is not needed
        if (guard::decode(report, statistics)) {
            const std::lock_guard lock(inbox_mutex_);
            if (measured_.size() < kMost) {
                measured_.emplace_back(rank, statistics);
            }
        }
    } catch (...) {
    }
}

void Director::closed(const char* why) noexcept {
    DEFT_INFO("rank %d: no more plans on this communicator: %s", info_.rank, why);
    const std::lock_guard lock(inbox_mutex_);
    no_more_ = true;
}

int Director::merge_async_error(int error) noexcept {
    if (error != DEFT_NCCL_SUCCESS && error != DEFT_NCCL_IN_PROGRESS) {
        return error;
    }
    if (switch_.failed()) {
        return DEFT_NCCL_SYSTEM_ERROR;
    }
    return lanes_.merge_async_error(error);
}

}  // namespace deft::director
