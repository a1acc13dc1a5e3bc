// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/leader_role.h"

#include <algorithm>

#include "base/log.h"
#include "shim/agreement/service.h"

namespace deft::agreement {

LeaderRole::LeaderRole(Council::Core& core, std::uint64_t council)
    : core_(core), council_(council), voters_(static_cast<std::size_t>(core.council->nranks())) {
    voters_[own()].here = true;
    voters_[own()].host = own_host();
    here_ = 1;
    check_gathered();
}

std::string LeaderRole::name_of(std::size_t rank) const {
    return "rank " + std::to_string(rank) +
           (voters_[rank].host.empty() ? "" : " (" + voters_[rank].host + ")");
}

// "ranks 3, 5, 6 and 2 more".
std::string LeaderRole::missing(bool acks) const {
    constexpr std::size_t kNamed = 4;
    std::string list;
    std::size_t count = 0;
    for (std::size_t rank = 0; rank < voters_.size(); ++rank) {
        if (acks ? !voters_[rank].acked : !voters_[rank].here) {
            if (++count <= kNamed) {
                list += (list.empty() ? "" : ", ") + std::to_string(rank);
            }
        }
    }
    if (count > kNamed) {
        list += " and " + std::to_string(count - kNamed) + " more";
    }
    return (count == 1 ? "rank " : "ranks ") + list;
}

void LeaderRole::tell(std::size_t rank, wire::Type type, std::span<const std::byte> payload) {
    if (Link* const link = voters_[rank].link; link != nullptr) {
        link->send(wire::make_frame(type, council_, static_cast<std::uint32_t>(rank), payload));
    }
}

void LeaderRole::tell_all(wire::Type type, std::span<const std::byte> payload) {
    tell_all(wire::make_frame(type, council_, wire::kEveryone, payload));
}

void LeaderRole::tell_all(const wire::Frame& frame) {
    for (const auto& [link, ranks] : branches_) {
        link->send(frame);
    }
}

void LeaderRole::send_off(Link& link, std::uint32_t rank, const std::string& why, bool ended) {
    link.send(wire::make_frame(wire::Type::Verdict, council_, rank,
                               wire::encode(wire::Verdict{false, why, ended, false})));
}

void LeaderRole::check_gathered() {
    if (here_ == voters_.size()) {
        begin_asking();
    }
}

void LeaderRole::begin_asking() {
    if (state_ == State::Deferred) {
        deadline_ = Clock::now() + core_.terms.timeout;
    }
    state_ = State::Asking;
    for (Voter& voter : voters_) {
        voter.acked = false;
    }
    voters_[own()].acked = true;
    acked_ = 1;
    tell_all(wire::Type::AllHere, {});
}

void LeaderRole::check_acked() {
    if (acked_ != voters_.size()) {
        return;
    }
    state_ = State::Open;
    deadline_ = kNever;
    tell_all(wire::Type::Verdict, wire::encode(wire::Verdict{true, "", false, false}));
    core_.set_verdict(Verdict::On, "");
}

void LeaderRole::decide_off(const std::string& why, bool ended) {
    state_ = State::Off;
    deadline_ = kNever;
    off_reason_ = why;
    off_by_end_ = ended;
    tell_all(wire::Type::Verdict, wire::encode(wire::Verdict{false, why, ended, false}));
    branches_.clear();
    absent_.clear();
    for (Voter& voter : voters_) {
        voter.link = nullptr;
        voter.absent_until = kNever;
    }
    core_.set_verdict(Verdict::Off, why, {ended, false});
}

// Off for now. Who is missing may be late, or its host busy: it is waited for.
void LeaderRole::defer(const std::string& why, Clock::time_point now) {
    if (asked_again_ == core_.terms.again.size()) {
        decide_off(why);
        return;
    }
    state_ = State::Deferred;
    deadline_ = now + core_.terms.again[asked_again_++];
    tell_all(wire::Type::Verdict, wire::encode(wire::Verdict{false, why, false, true}));
    core_.set_verdict(Verdict::Off, why, {false, true});
}

void LeaderRole::ask_again(Clock::time_point now) {
    if (here_ == voters_.size()) {
        begin_asking();
    } else {
        defer(missing(false) + " did not answer, asked again " + std::to_string(asked_again_) +
                  " times",
              now);
    }
}

void LeaderRole::step(Clock::time_point now) {
    Wishes wishes = take_wishes(now);
    core_.catch_up();
    if (wishes.leave && state_ != State::Left) {
        leave();
    }
    if (state_ == State::Asking) {
        check_acked();
    }
    check_deadline(now);
    check_absent(now);
    serve_children(wishes);
    for (const std::vector<std::byte>& report : wishes.reports) {
        core_.hear(core_.council->rank(), report);
    }
    if (state_ == State::Open && wishes.proposal) {
        begin_vote(std::move(*wishes.proposal), now);
    }
    for (const auto& [serial, yes] : wishes.answers) {
        if (voting_ && serial == proposal_.serial && voters_[own()].vote == Vote::None) {
            vote(own(), yes);
        }
    }
    if (voting_ && now >= patience_) {
        DEFT_INFO("a new plan is dropped: not every rank has answered in time");
        decide(false);
    }
}

LeaderRole::Wishes LeaderRole::take_wishes(Clock::time_point now) {
    Wishes wishes;
    const Monitor::Lock lock(core_.monitor);
    wishes.leave = core_.left || core_.abandoned;
    if (core_.created && deadline_ == kNever && pending()) {
        deadline_ = now + core_.terms.timeout;
    }
    if (voting_) {
        patience_ = std::min(patience_, core_.overdue);
    }
    wishes.proposal.swap(core_.proposal);
    wishes.answers.swap(core_.answers);
    wishes.reports.swap(core_.reports);
    core_.report_bytes = 0;
    wishes.posts.swap(core_.posts);
    wishes.questions.swap(core_.questions);
    return wishes;
}

void LeaderRole::check_deadline(Clock::time_point now) {
    if (now < deadline_) {
        return;
    }
    if (state_ == State::Deferred) {
        ask_again(now);
    } else if (pending()) {
        const auto waited =
            std::chrono::duration_cast<std::chrono::milliseconds>(core_.terms.timeout).count();
        defer(missing(state_ == State::Asking) + " did not answer within " +
                  std::to_string(waited) +
                  " ms of the communicator's creation: no deft there, another release, or no way "
                  "to reach " +
                  own_host() + Service::process().suspicion(),
              now);
    }
}

bool LeaderRole::take(Link& link, const wire::Header& header, std::span<const std::byte> payload) {
    if (header.rank >= voters_.size() || voters_[header.rank].link != &link) {
        return true;  // of a rank that was turned out, or has come back another way
    }
    const std::size_t rank = header.rank;
    bool good = false;
    switch (header.type) {
        case wire::Type::Leave:
            lost(rank, "has left", true);
            return true;
        case wire::Type::Gone:
            miss(rank, Clock::now());
            return true;
        case wire::Type::Post:
        case wire::Type::Ask:
            good = take_of_children(rank, header.type, payload);
            break;
        case wire::Type::Ack:
        case wire::Type::Report:
        case wire::Type::Answer:
            good = take_of_member(rank, header.type, payload);
            break;
        case wire::Type::Hello:
        case wire::Type::AllHere:
        case wire::Type::Verdict:
        case wire::Type::Prepare:
        case wire::Type::Decision:
        case wire::Type::Closed:
        case wire::Type::Found:
        case wire::Type::Ready:
        case wire::Type::Resumed:
        case wire::Type::Serve:
        case wire::Type::Offer:
        case wire::Type::Move:
        case wire::Type::Join:
        case wire::Type::Name:
            break;
    }
    return good || turn_out(rank);
}

// What a member says of itself. False: nonsense.
bool LeaderRole::take_of_member(std::size_t rank, wire::Type type,
                                std::span<const std::byte> payload) {
    Voter& voter = voters_[rank];
    if (type == wire::Type::Ack) {
        if (state_ == State::Asking && !voter.acked) {
            voter.acked = true;
            ++acked_;
            check_acked();
        }
        return true;
    }
    if (type == wire::Type::Report) {
        ++voter.heard;
        if (state_ == State::Open || state_ == State::Closed) {
            core_.hear(static_cast<int>(rank), payload);
        }
        return true;
    }
    wire::Word word;
    if (!wire::decode(payload, word)) {
        return false;
    }
    hear_answer(rank, word);
    return true;
}

void LeaderRole::leave() {
    const bool before = pending() || state_ == State::Deferred;
    if (voting_) {
        decide(false);
    }
    const std::string why = "the leader, " + name_of(own()) + ", has ended its communicator";
    if (before) {
        decide_off(why, true);
    } else if (off_reason_.empty()) {
        off_reason_ = why;
        off_by_end_ = true;
    }
    core_.close("this rank has given up waiting for a decision");
    tell_all(wire::Type::Leave, {});
    branches_.clear();
    state_ = State::Left;
}

void LeaderRole::overslept(Clock::duration slept) {
    put_off(deadline_, slept);
    put_off(patience_, slept);
    for (const std::size_t rank : absent_) {
        put_off(voters_[rank].absent_until, slept);
    }
}

Clock::time_point LeaderRole::due() const {
    Clock::time_point due = std::min(deadline_, patience_);
    for (const std::size_t rank : absent_) {
        due = std::min(due, voters_[rank].absent_until);
    }
    return due;
}

}  // namespace deft::agreement
