// SPDX-License-Identifier: Apache-2.0
// Whom the leader knows of: ranks that come, by which link, that are missed and come back.
#include <algorithm>

#include "base/build_version.h"
#include "shim/agreement/leader_role.h"
#include "shim/agreement/service.h"

namespace deft::agreement {

// False, and told, if the rank cannot agree with this one.
bool LeaderRole::fits(Link& link, const wire::Hello& hello) {
    if (state_ == State::Off || state_ == State::Left) {
        send_off(link, hello.rank, off_reason_, off_by_end_);
        return false;
    }
    const Party leader{core_.council->rank(),
                       core_.council->nranks(),
                       core_.terms.nccl_version,
                       build_version(),
                       own_host(),
                       core_.terms.settings};
    const Party member{static_cast<int>(hello.rank),
                       static_cast<int>(hello.nranks),
                       hello.nccl_version,
                       hello.deft_version,
                       hello.host,
                       hello.settings};
    const std::string why = difference(leader, member);
    if (why.empty()) {
        return true;
    }
    send_off(link, hello.rank, why);
    if (pending() || state_ == State::Deferred) {
        decide_off(why);
    }
    return false;
}

bool LeaderRole::adopt(Link& link, const wire::Hello& hello, bool own_link) {
    if (!fits(link, hello)) {
        return true;
    }
    const std::size_t rank = hello.rank;  // below nranks: the decoder and fits() saw to it
    Voter& voter = voters_[rank];
    if (voter.link == &link && hello.process == 0) {
        return turn_out(rank);
    }
    const bool back = voter.here && hello.process != 0 && hello.process == voter.process;
    // While they gather it is the same rank again, whose first connection broke.
    const bool gathering = state_ == State::Gathering || state_ == State::Deferred;
    if (rank == own() || (!gathering && voter.here && !back)) {
        send_off(link, hello.rank, name_of(rank) + " is there already");
        return true;
    }
    settle(rank, link, own_link);
    voter.process = hello.process;
    if (!voter.here) {
        voter.here = true;
        voter.host = hello.host;
        ++here_;
    }
    if (gathering) {
        check_gathered();
    } else {
        come_back(rank, hello.serial);
    }
    return true;
}

// It has sent nonsense. Always false.
bool LeaderRole::turn_out(std::size_t rank) {
    tell(rank, wire::Type::Leave, {});
    lost(rank, "sent nonsense");
    return false;
}

// The rank is behind this link from now on.
void LeaderRole::settle(std::size_t rank, Link& link, bool own_link) {
    unsettle(rank);
    voters_[rank].link = &link;
    voters_[rank].own = own_link;
    branches_[&link].push_back(rank);
    if (voters_[rank].absent_until != kNever) {
        voters_[rank].absent_until = kNever;
        std::erase(absent_, rank);
    }
}

void LeaderRole::unsettle(std::size_t rank) {
    const auto branch = branches_.find(voters_[rank].link);
    voters_[rank].link = nullptr;
    if (branch == branches_.end()) {
        return;
    }
    std::erase(branch->second, rank);
    if (branch->second.empty()) {
        branches_.erase(branch);
    }
}

// What the rank may have missed.
void LeaderRole::come_back(std::size_t rank, std::uint64_t serial) {
    if (state_ == State::Asking) {
        tell(rank, wire::Type::AllHere, {});
        return;
    }
    const Voter& voter = voters_[rank];
    tell(rank, wire::Type::Verdict, wire::encode(wire::Verdict{true, "", false, false}));
    const auto decided = std::find_if(decisions_.begin(), decisions_.end(),
                                      [serial](const auto& one) { return one.serial == serial; });
    if (decided != decisions_.end()) {
        tell(rank, wire::Type::Decision, wire::encode(*decided));
    }
    tell(rank, wire::Type::Resumed, wire::encode_resumed(voter.heard));
    if (voting_ && voter.vote == Vote::None && voter.link != nullptr) {
        voter.link->send(prepare_);
    }
    if (state_ == State::Closed) {
        tell(rank, wire::Type::Closed, {});
    }
}

void LeaderRole::lost(std::size_t rank, const std::string& how, bool ended) {
    Voter& voter = voters_[rank];
    unsettle(rank);
    if (voter.absent_until != kNever) {
        voter.absent_until = kNever;
        std::erase(absent_, rank);
    }
    const std::string why = name_of(rank) + " " + how;
    switch (state_) {
        case State::Gathering:
        case State::Deferred:
            if (voter.here) {  // it may come again
                voter.here = false;
                --here_;
            }
            break;
        case State::Asking:
            decide_off(why, ended);
            break;
        case State::Open:
            if (voting_) {
                decide(false);
            }
            state_ = State::Closed;
            tell_all(wire::Type::Closed, {});
            core_.close(why);
            break;
        case State::Closed:
        case State::Off:
        case State::Left:
            break;
    }
}

// The connection that the rank was behind has ended. The rank finds another way, or is gone too.
void LeaderRole::miss(std::size_t rank, Clock::time_point now) {
    if (state_ == State::Gathering || state_ == State::Deferred) {
        lost(rank, "is gone");
        return;
    }
    unsettle(rank);
    if (voters_[rank].absent_until == kNever) {
        voters_[rank].absent_until = now + pace().back;
        absent_.push_back(rank);
    }
}

void LeaderRole::check_absent(Clock::time_point now) {
    for (std::size_t i = 0; i < absent_.size();) {
        const std::size_t rank = absent_[i];
        if (now >= voters_[rank].absent_until) {
            lost(rank, "is gone");  // takes it off the list
            i = 0;
        } else {
            ++i;
        }
    }
}

void LeaderRole::link_ended(Link& link, const std::string& how, bool moved) {
    const auto branch = branches_.find(&link);
    if (branch == branches_.end()) {
        return;
    }
    const std::vector<std::size_t> ranks = std::move(branch->second);
    branches_.erase(branch);
    for (const std::size_t rank : ranks) {
        voters_[rank].link = nullptr;
    }
    const Clock::time_point now = Clock::now();
    for (const std::size_t rank : ranks) {
        if (state_ == State::Off || state_ == State::Left) {
            return;
        }
        // Its process has ended, or sent nonsense. Else the network is to blame.
        if (voters_[rank].own && !moved && !link.stream().broken()) {
            lost(rank, how);
        } else {
            miss(rank, now);
        }
    }
}

}  // namespace deft::agreement
