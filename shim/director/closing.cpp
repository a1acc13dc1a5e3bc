// SPDX-License-Identifier: Apache-2.0
// Lanes that no plan uses any more: a network that helps nothing, a plan that was given up. The
// leader names how many stay; each rank ends the others when nothing of its own uses them.
#include <algorithm>

#include "shim/director/director.h"
#include "topology/base/log.h"

namespace deft::director {

std::size_t Director::lanes_of(const planner::Plan& plan) {
    std::size_t lanes = 1;
    for (const planner::Transfer& transfer : plan.transfers) {
        lanes = std::max<std::size_t>(lanes, transfer.link + 1);
    }
    return lanes;
}

// Leader. While a plan is being made ready, or the guard may take one up again, all stay.
void Director::close_unused(const JobView& view) {
    const bool nothing = course_ == Course::Watching && view.reason.empty() &&
                         planned_signature_ != 0 && view.signature == planned_signature_;
    const bool settled = nothing || course_ == Course::Running || course_ == Course::Resting;
    const std::size_t needed = current_ != nullptr ? current_->lanes() : 0;
    if (!settled || wanted_lanes_ <= needed) {
        return;
    }
    agreement::Proposal proposal;
    proposal.serial = next_serial_;
    proposal.switch_call = kNever;
    Order order;
    order.kind = Kind::Close;
    order.keep = std::min(agreed_lanes_, needed);
    proposal.body = encode(order);
    if (council_.propose(std::move(proposal))) {
        ++next_serial_;
        wanted_lanes_ = agreed_lanes_ = static_cast<std::size_t>(order.keep);
    }  // else it is busy: at the next look
}

// From the keep-th on. One that was in a plan in force, or will be on this rank, may be at the last
// transfers of it here and with others: it is closed when they are over. What becomes of any other
// concerns nobody.
void Director::end_lanes(std::size_t keep) {
    while (lanes_.size() > keep) {
        std::unique_ptr<executor::Lane> lane = std::move(lanes_.back());
        lanes_.pop_back();
        if (lanes_.size() < used_lanes_.load(std::memory_order_seq_cst) || staged_in_use()) {
            closing_lanes_.push_back(std::move(lane));
            continue;
        }
        withdraw(*lane);
        lane->abort();
        ended_lanes_.push_back(std::move(lane));  // a hook may be asking it for its errors
    }
    speeds_.resize(std::min(speeds_.size(), lanes_.size()));
}

// Those whose time has come. Never waits: an abort of the communicator has to reach them.
void Director::close_lanes() {
    const auto uses = [this](const std::unique_ptr<executor::Executor>& executor) {
        return executor != nullptr && executor->lanes() > lanes_.size();
    };
    if (closing_lanes_.empty() || uses(current_) || uses(staged_) ||
        std::any_of(retired_.begin(), retired_.end(), uses)) {
        return;
    }
    while (!closing_lanes_.empty() && closing_lanes_.back()->idle()) {
        executor::Lane& lane = *closing_lanes_.back();
        used_lanes_.store(std::min(used_lanes_.load(), lanes_.size() + closing_lanes_.size() - 1),
                          std::memory_order_seq_cst);
        withdraw(lane);
        lane.disconnect();
        ended_lanes_.push_back(std::move(closing_lanes_.back()));
        closing_lanes_.pop_back();
    }
}

// No hook asks it for its errors any more.
void Director::withdraw(const executor::Lane& lane) noexcept {
    for (auto& published : published_lanes_) {
        if (published.load(std::memory_order_seq_cst) == &lane) {
            published.store(nullptr, std::memory_order_seq_cst);
        }
    }
    DEFT_INFO("rank %d: a lane is closed that no plan uses", seat_.rank);
}

}  // namespace deft::director
