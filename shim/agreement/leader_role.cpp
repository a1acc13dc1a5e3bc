// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/leader_role.h"

#include <algorithm>

#include "base/build_version.h"
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
        if (asking.council != nullptr) {
            Council::Core::tell_child(asking.council, nullptr,
                                      "the communicator it was made from has no agreement");
        }
    }
    asking_.clear();
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
    ask({child, rank, nullptr});
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
