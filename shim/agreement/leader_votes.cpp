// SPDX-License-Identifier: Apache-2.0
// The leader's proposals, and where the communicator's children meet.
#include <algorithm>

#include "base/log.h"
#include "shim/agreement/leader_role.h"

namespace deft::agreement {
namespace {

// As many as one split of a large communicator makes, and what are asked for late.
constexpr std::size_t kMaxChildren = 1024;
constexpr std::size_t kMaxAsking = 65536;
// For ranks that were on their way when it was decided.
constexpr std::size_t kDecisionsKept = 1024;

}  // namespace

void LeaderRole::begin_vote(Proposal&& proposal, Clock::time_point now) {
    proposal_ = std::move(proposal);
    digest_ = wire::digest_of(proposal_.serial, proposal_.switch_call, proposal_.body);
    patience_ = now + proposal_.patience;
    voting_ = true;
    for (Voter& voter : voters_) {
        voter.vote = Vote::None;
    }
    yes_ = 0;
    prepare_ = wire::make_frame(wire::Type::Prepare, council_, wire::kEveryone,
                                wire::encode(wire::Prepare{proposal_.serial, proposal_.switch_call,
                                                           digest_, proposal_.body}));
    tell_all(prepare_);
    switch (core_.ask(proposal_)) {
        case Answer::No:
            vote(own(), false);
            break;
        case Answer::Yes:
            vote(own(), true);
            break;
        case Answer::Later:
            break;
    }
}

void LeaderRole::hear_answer(std::size_t rank, const wire::Word& word) {
    if (!voting_ || word.serial != proposal_.serial || voters_[rank].vote != Vote::None) {
        return;
    }
    const bool same = word.digest == digest_;
    if (!same) {
        DEFT_WARN(
            "a new plan is dropped: %s has read another one than was proposed; the memory of its "
            "host or of this one is damaged",
            name_of(rank).c_str());
    }
    vote(rank, word.yes && same);
}

void LeaderRole::vote(std::size_t rank, bool yes) {
    voters_[rank].vote = yes ? Vote::Yes : Vote::No;
    if (!yes) {
        decide(false);
    } else if (++yes_ == voters_.size()) {
        decide(true);
    }
}

void LeaderRole::decide(bool commit) {
    voting_ = false;
    prepare_.reset();
    patience_ = kNever;
    // If this rank's own hook has given up waiting, nobody may switch.
    const bool own_part = core_.begin_decision(proposal_.serial);
    commit = commit && own_part;
    if (decisions_.size() == kDecisionsKept) {
        decisions_.pop_front();
    }
    decisions_.push_back({proposal_.serial, commit, digest_});
    tell_all(wire::Type::Decision, wire::encode(decisions_.back()));
    if (own_part) {
        core_.finish_decision(proposal_.serial, commit);
    }
}

void LeaderRole::post(const wire::Meeting& meeting) {
    if (board_.insert_or_assign(meeting.child, meeting).second) {
        posted_.push_back(meeting.child);
    }
    if (posted_.size() > std::max(kMaxChildren, voters_.size())) {
        board_.erase(posted_.front());
        posted_.pop_front();
    }
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
    if (asking.council) {
        Council::Core::tell_child(*asking.council, &meeting, "what the first rank said is damaged");
    } else {
        tell(asking.rank, wire::Type::Found, wire::encode(meeting));
    }
}

// Where the communicator's children meet: what this rank says of it, and asks.
void LeaderRole::serve_children(const Wishes& wishes) {
    for (const wire::Meeting& meeting : wishes.posts) {
        post(meeting);
    }
    for (const Council::Core::Question& question : wishes.questions) {
        ask({question.child, own(), question.council});
    }
    if (state_ != State::Off && state_ != State::Deferred && state_ != State::Left) {
        return;
    }
    for (const Asking& asking : asking_) {
        if (asking.council) {
            Council::Core::tell_child(*asking.council, nullptr,
                                      "the communicator it was made from has no agreement");
        }
    }
    asking_.clear();
}

// Of where children meet. False: nonsense.
bool LeaderRole::take_of_children(std::size_t rank, wire::Type type,
                                  std::span<const std::byte> payload) {
    if (type == wire::Type::Post) {
        wire::Meeting meeting;
        if (!wire::decode(payload, meeting)) {
            return false;
        }
        post(meeting);
        return true;
    }
    std::uint64_t child = 0;
    if (!wire::decode_question(payload, child)) {
        return false;
    }
    ask({child, rank, {}});
    return true;
}

}  // namespace deft::agreement
