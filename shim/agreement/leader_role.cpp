// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/leader_role.h"

#include <algorithm>

#include "base/build_version.h"
#include "base/log.h"

namespace deft::agreement {
namespace {

constexpr auto kLastWord = std::chrono::seconds(2);
constexpr std::size_t kMaxLeaving = 256;

}  // namespace

LeaderRole::LeaderRole(Council::Core& core)
    : core_(core), voters_(static_cast<std::size_t>(core.council->nranks())) {
    voters_[own()].here = true;
    voters_[own()].acked = true;
    voters_[own()].host = own_host();
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

void LeaderRole::send_off(Stream&& stream, const std::string& why, bool ended) {
    if (stream.send(wire::Type::Verdict, wire::encode(wire::Verdict{false, why, ended})) &&
        leaving_.size() < kMaxLeaving) {
        leaving_.push_back({std::move(stream), Clock::now() + kLastWord});
    }
}

void LeaderRole::adopt(Stream&& stream, const wire::Hello& hello) {
    if (state_ == State::Off || state_ == State::Left) {
        send_off(std::move(stream), off_reason_, off_by_end_);
        return;
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
    if (const std::string why = difference(leader, member); !why.empty()) {
        send_off(std::move(stream), why);
        if (state_ == State::Gathering || state_ == State::Asking) {
            decide_off(why);
        }
        return;
    }
    Voter& voter = voters_[hello.rank];  // below nranks: the decoder and difference() saw to it
    if (hello.rank == own() || (state_ != State::Gathering && voter.here)) {
        send_off(std::move(stream), name_of(hello.rank) + " is there already");
        return;
    }
    // A second one while gathering is the same rank again, whose first connection broke.
    voter.stream = std::move(stream);
    voter.here = true;
    voter.host = hello.host;
    check_gathered();
}

void LeaderRole::check_gathered() {
    for (const Voter& voter : voters_) {
        if (!voter.here) {
            return;
        }
    }
    state_ = State::Asking;
    for (std::size_t rank = 0; rank < voters_.size(); ++rank) {
        if (rank != own() && !voters_[rank].stream.send(wire::Type::AllHere, {})) {
            lost(rank, "is gone");
            return;
        }
    }
}

void LeaderRole::check_acked() {
    for (const Voter& voter : voters_) {
        if (!voter.acked) {
            return;
        }
    }
    state_ = State::Open;
    deadline_ = kNever;
    const std::vector<std::byte> on = wire::encode(wire::Verdict{true, ""});
    for (Voter& voter : voters_) {
        (void)voter.stream.send(wire::Type::Verdict, on);  // step() finds what broke
    }
    core_.set_verdict(Verdict::On, "");
}

void LeaderRole::decide_off(const std::string& why, bool ended) {
    state_ = State::Off;
    deadline_ = kNever;
    off_reason_ = why;
    off_by_end_ = ended;
    for (Voter& voter : voters_) {
        if (voter.stream.open()) {
            send_off(std::move(voter.stream), why, ended);
            voter.stream.close();
        }
    }
    core_.set_verdict(Verdict::Off, why, ended);
}

void LeaderRole::lost(std::size_t rank, const std::string& how, bool ended) {
    voters_[rank].stream.close();
    const std::string why = name_of(rank) + " " + how;
    switch (state_) {
        case State::Gathering:
            voters_[rank].here = false;  // it may come again
            break;
        case State::Asking:
            decide_off(why, ended);
            break;
        case State::Open:
            if (voting_) {
                decide(false);
            }
            state_ = State::Closed;
            for (Voter& voter : voters_) {
                (void)voter.stream.send(wire::Type::Closed, {});
            }
            core_.close(why);
            break;
        case State::Closed:
        case State::Off:
        case State::Left:
            break;
    }
}

void LeaderRole::step(Clock::time_point now) {
    Wishes wishes = take_wishes(now);
    core_.catch_up();
    if (wishes.leave && state_ != State::Left) {
        leave(now);
    }
    if (state_ == State::Asking) {
        check_acked();
    }
    check_deadline(now);
    serve_children(wishes);
    for (const std::vector<std::byte>& report : wishes.reports) {
        core_.hear(core_.council->rank(), report);
    }
    if (state_ == State::Open && wishes.proposal) {
        begin_vote(std::move(*wishes.proposal), now);
    }
    for (const auto& [serial, yes] : wishes.answers) {
        if (voting_ && serial == proposal_.serial && voters_[own()].vote == Vote::None) {
            voters_[own()].vote = yes ? Vote::Yes : Vote::No;
            count_votes();
        }
    }
    if (voting_ && now >= patience_) {
        DEFT_INFO("a new plan is dropped: not every rank has answered in time");
        decide(false);
    }
    // A connection that broke while something was sent.
    for (std::size_t rank = 0; rank < voters_.size(); ++rank) {
        if (rank != own() && !voters_[rank].stream.open() &&
            (state_ == State::Asking || state_ == State::Open)) {
            lost(rank, "is gone");
        }
    }
    std::erase_if(leaving_,
                  [now](const Leaving& last) { return !last.stream.open() || now >= last.until; });
}

LeaderRole::Wishes LeaderRole::take_wishes(Clock::time_point now) {
    Wishes wishes;
    const Monitor::Lock lock(core_.monitor);
    wishes.leave = core_.left || core_.abandoned;
    if (core_.created && deadline_ == kNever &&
        (state_ == State::Gathering || state_ == State::Asking)) {
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
    if ((state_ != State::Gathering && state_ != State::Asking) || now < deadline_) {
        return;
    }
    const auto waited =
        std::chrono::duration_cast<std::chrono::milliseconds>(core_.terms.timeout).count();
    decide_off(missing(state_ == State::Asking) + " did not answer within " +
               std::to_string(waited) +
               " ms of the communicator's creation: no deft there, another release, or no way "
               "to reach " +
               own_host());
}

// Where the communicator's children meet: what this rank says of it, and asks.
void LeaderRole::serve_children(const Wishes& wishes) {
    for (const wire::Meeting& meeting : wishes.posts) {
        post(meeting);
    }
    for (const Council::Core::Question& question : wishes.questions) {
        ask({question.child, own(), question.council});
    }
    if (state_ != State::Off && state_ != State::Left) {
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

void LeaderRole::gather(PollSet& set) {
    for (Voter& voter : voters_) {
        voter.stream.gather(set);
    }
    for (Leaving& last : leaving_) {
        last.stream.gather(set);
    }
}

void LeaderRole::ready(const PollSet& set, Clock::time_point /*now*/) {
    for (std::size_t rank = 0; rank < voters_.size(); ++rank) {
        Stream& stream = voters_[rank].stream;
        const short events = stream.ready(set);
        if (events == 0) {
            continue;
        }
        if ((events & POLLOUT) != 0 && !stream.flush()) {
            lost(rank, "is gone");
            continue;
        }
        const bool alive = stream.fill();
        wire::Header header;
        std::span<const std::byte> payload;
        Stream::Next next = Stream::Next::None;
        bool more = true;
        while (more && (next = stream.next(header, payload)) == Stream::Next::Frame) {
            more = take(rank, header, payload);
        }
        if (!more) {
            continue;
        }
        if (next == Stream::Next::Bad) {
            lost(rank, stream.damaged() ? "sent a damaged frame" : "sent nonsense");
        } else if (!alive) {
            lost(rank, "is gone");
        }
    }
    for (Leaving& last : leaving_) {
        const short events = last.stream.ready(set);
        if (events != 0 && (!last.stream.flush() || !last.stream.fill())) {
            last.stream.close();
        }
    }
}

// False if the connection is not to be read any further.
bool LeaderRole::take(std::size_t rank, const wire::Header& header,
                      std::span<const std::byte> payload) {
    if (header.type == wire::Type::Leave) {
        lost(rank, "has left", true);
        return false;
    }
    const bool good = header.type == wire::Type::Post || header.type == wire::Type::Ask
                          ? take_of_children(rank, header.type, payload)
                          : take_of_member(rank, header.type, payload);
    if (!good) {
        lost(rank, "sent nonsense");
    }
    return good;
}

// What a member says of itself. False: nonsense.
bool LeaderRole::take_of_member(std::size_t rank, wire::Type type,
                                std::span<const std::byte> payload) {
    if (type == wire::Type::Ack) {
        if (state_ == State::Asking && !voters_[rank].acked) {
            voters_[rank].acked = true;
            check_acked();
        }
        return true;
    }
    if (type == wire::Type::Report) {
        if (state_ == State::Open || state_ == State::Closed) {
            core_.hear(static_cast<int>(rank), payload);
        }
        return true;
    }
    wire::Word word;
    if (type != wire::Type::Answer || !wire::decode(payload, word)) {
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

void LeaderRole::leave(Clock::time_point now) {
    const bool pending = state_ == State::Gathering || state_ == State::Asking;
    if (voting_) {
        decide(false);
    }
    const std::string why = "the leader, " + name_of(own()) + ", has ended its communicator";
    if (pending) {
        decide_off(why, true);
    } else if (off_reason_.empty()) {
        off_reason_ = why;
        off_by_end_ = true;
    }
    core_.close("this rank has given up waiting for a decision");
    for (Voter& voter : voters_) {
        if (voter.stream.send(wire::Type::Leave, {})) {
            leaving_.push_back({std::move(voter.stream), now + kLastWord});
        }
        voter.stream.close();
    }
    state_ = State::Left;
}

Clock::time_point LeaderRole::due() const {
    Clock::time_point due = std::min(deadline_, patience_);
    for (const Leaving& last : leaving_) {
        due = std::min(due, last.until);
    }
    return due;
}

}  // namespace deft::agreement
