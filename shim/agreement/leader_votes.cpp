// SPDX-License-Identifier: Apache-2.0
// The leader's proposals, and where the communicator's children meet.
#include "base/log.h"
#include "shim/agreement/leader_role.h"

namespace deft::agreement {
namespace {

constexpr std::size_t kMaxChildren = 4096;
constexpr std::size_t kMaxAsking = 65536;

}  // namespace

void LeaderRole::begin_vote(Proposal&& proposal, Clock::time_point now) {
    proposal_ = std::move(proposal);
    digest_ = wire::digest_of(proposal_.serial, proposal_.switch_call, proposal_.body);
    patience_ = now + proposal_.patience;
    voting_ = true;
    for (Voter& voter : voters_) {
        voter.vote = Vote::None;
    }
    const std::vector<std::byte> frame = wire::encode(
        wire::Prepare{proposal_.serial, proposal_.switch_call, digest_, proposal_.body});
    for (std::size_t rank = 0; rank < voters_.size(); ++rank) {
        if (rank != own()) {
            (void)voters_[rank].stream.send(wire::Type::Prepare, frame);
        }
    }
    switch (core_.ask(proposal_)) {
        case Answer::No:
            voters_[own()].vote = Vote::No;
            break;
        case Answer::Yes:
            voters_[own()].vote = Vote::Yes;
            break;
        case Answer::Later:
            break;
    }
    count_votes();
}

void LeaderRole::hear_answer(std::size_t rank, const wire::Word& word) {
    Voter& voter = voters_[rank];
    if (!voting_ || word.serial != proposal_.serial || voter.vote != Vote::None) {
        return;
    }
    const bool same = word.digest == digest_;
    if (!same) {
        DEFT_WARN(
            "a new plan is dropped: %s has read another one than was proposed; the memory of its "
            "host "
            "or of this one is damaged",
            name_of(rank).c_str());
    }
    voter.vote = word.yes && same ? Vote::Yes : Vote::No;
    count_votes();
}

void LeaderRole::count_votes() {
    bool all = true;
    for (const Voter& voter : voters_) {
        if (voter.vote == Vote::No) {
            decide(false);
            return;
        }
        all = all && voter.vote == Vote::Yes;
    }
    if (all) {
        decide(true);
    }
}

void LeaderRole::decide(bool commit) {
    voting_ = false;
    patience_ = kNever;
    // If this rank's own hook has given up waiting, nobody may switch.
    const bool own_part = core_.begin_decision(proposal_.serial);
    commit = commit && own_part;
    const std::vector<std::byte> frame =
        wire::encode(wire::Word{proposal_.serial, commit, digest_});
    for (Voter& voter : voters_) {
        (void)voter.stream.send(wire::Type::Decision, frame);
    }
    if (own_part) {
        core_.finish_decision(proposal_.serial, commit);
    }
}

void LeaderRole::post(const wire::Meeting& meeting) {
    if (board_.size() == kMaxChildren) {
        board_.erase(board_.begin());
    }
    board_[meeting.child] = meeting;
    for (std::size_t i = 0; i < asking_.size();) {
        if (asking_[i].child == meeting.child) {
            const Asking asking = asking_[i];
            asking_.erase(asking_.begin() + static_cast<std::ptrdiff_t>(i));
            tell(asking, meeting);
        } else {
            ++i;
        }
    }
}

void LeaderRole::ask(const Asking& asking) {
    const auto known = board_.find(asking.child);
    if (known != board_.end()) {
        tell(asking, known->second);
    } else if (asking_.size() < kMaxAsking) {
        asking_.push_back(asking);
    }
}

void LeaderRole::tell(const Asking& asking, const wire::Meeting& meeting) {
    if (asking.council != nullptr) {
        Council::Core::tell_child(asking.council, &meeting, "what the first rank said is damaged");
    } else {
        (void)voters_[asking.rank].stream.send(wire::Type::Found, wire::encode(meeting));
    }
}

}  // namespace deft::agreement
