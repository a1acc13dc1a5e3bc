// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/member_role.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/build_version.h"
#include "shim/agreement/process_number.h"

namespace deft::agreement {
namespace {

// Somewhat longer than the leader waits, so that its reason, which names the rank that is at fault,
// gets here first.
constexpr auto kLater = std::chrono::seconds(2);
// What is kept of what was reported.
constexpr std::size_t kReportsKept = 64;
constexpr std::size_t kPostsKept = 256;
constexpr std::size_t kReportBytesKept = std::size_t{1} << 20;

}  // namespace

MemberRole::MemberRole(Council::Core& core, Ways& ways, const wire::Trailer& trailer)
    : core_(core), ways_(ways), trailer_(trailer) {}

MemberRole::~MemberRole() {
    part();
}

void MemberRole::found(const wire::Trailer* trailer, const std::string& why) {
    if (state_ != State::Lost) {
        return;
    }
    if (trailer == nullptr) {
        off(why);
        return;
    }
    trailer_ = *trailer;
    state_ = State::Waiting;
}

void MemberRole::set_out() {
    set_out_ = true;
    way_ = &ways_.way_to(trailer_);
    way_->attach(*this);
}

// The leader counts on it no more. The connection is other ranks' too, so its end says nothing.
void MemberRole::bow_out() {
    if (way_ != nullptr && state_ != State::Waiting) {
        way_->send(wire::make_frame(wire::Type::Leave, council(), rank(), {}));
    }
    part();
}

// Needs the way no more.
void MemberRole::part() {
    if (way_ != nullptr) {
        way_->detach(*this);
        way_ = nullptr;
    }
}

void MemberRole::say(wire::Type type, std::span<const std::byte> payload) {
    if (way_ != nullptr && !returning_) {
        way_->send(wire::make_frame(type, council(), rank(), payload));
    }
}

// Posts and questions of this rank's children go to the leader as soon as, and as long as, it
// listens.
void MemberRole::serve_children() {
    const bool later =
        state_ == State::Lost || state_ == State::Waiting || state_ == State::Greeted || returning_;
    if (later) {
        return;
    }
    if (way_ != nullptr && state_ != State::Left && state_ != State::Deferred) {
        for (; posted_ < posts_.size(); ++posted_) {
            say(wire::Type::Post, wire::encode(posts_[posted_]));
        }
        // For a leader that has not heard them.
        while (posts_.size() > kPostsKept) {
            posts_.pop_front();
            --posted_;
        }
        for (const Council::Core::Question& question : questions_) {
            say(wire::Type::Ask, wire::encode_question(question.child));
            asking_.push_back(question);
        }
        questions_.clear();
        return;
    }
    const std::string why = "the communicator it was made from has no agreement any more";
    for (auto* list : {&questions_, &asking_}) {
        for (const Council::Core::Question& question : *list) {
            Council::Core::tell_child(*question.council, nullptr, why);
        }
        list->clear();
    }
}

void MemberRole::step(Clock::time_point now) {
    Wishes wishes = take_wishes(now);
    core_.catch_up();
    if (wishes.leave && state_ != State::Left) {
        leave();
    }
    if (state_ == State::Waiting && !set_out_) {
        set_out();
    }
    check_deadlines(now);
    for (const std::vector<std::byte>& payload : wishes.reports) {
        report(payload);
    }
    for (const auto& [serial, yes] : wishes.answers) {
        answer(serial, yes);
    }
    serve_children();
}

void MemberRole::check_deadlines(Clock::time_point now) {
    if (now >= deadline_) {
        if (state_ == State::Lost) {
            off("the first rank of a split communicator has not said where to meet");
        } else {
            const std::string problem = way_ != nullptr ? way_->problem() : "";
            const std::string leader = way_ != nullptr ? way_->leader() : "the leader";
            defer(problem.empty() ? leader + " has not decided in time"
                                  : leader + " does not answer (" + problem + ")",
                  now);
        }
    }
    if (now >= asked_until_) {
        off("the leader has not asked again");
    }
    if (away() && now >= back_by_) {
        lost("is gone", true);
    }
}

MemberRole::Wishes MemberRole::take_wishes(Clock::time_point now) {
    Wishes wishes;
    const Monitor::Lock lock(core_.monitor);
    wishes.leave = core_.left || core_.abandoned;
    if (core_.created && deadline_ == kNever && core_.council->verdict() == Verdict::Pending) {
        deadline_ = now + core_.terms.timeout + core_.terms.timeout / 4 + kLater;
    }
    wishes.answers.swap(core_.answers);
    posts_.insert(posts_.end(), core_.posts.begin(), core_.posts.end());
    questions_.insert(questions_.end(), core_.questions.begin(), core_.questions.end());
    core_.posts.clear();
    core_.questions.clear();
    wishes.reports.swap(core_.reports);
    core_.report_bytes = 0;
    return wishes;
}

void MemberRole::leave() {
    if (core_.council->verdict() == Verdict::Pending) {
        core_.set_verdict(Verdict::Off, "this rank has left");
    }
    core_.close("this rank has given up waiting for a decision");
    bow_out();
    state_ = State::Left;
    deadline_ = asked_until_ = back_by_ = kNever;
    returning_ = false;
}

void MemberRole::greet() {
    wire::Hello hello;
    hello.nonce = trailer_.nonce;
    hello.nranks = static_cast<std::uint32_t>(core_.council->nranks());
    hello.rank = rank();
    hello.nccl_version = core_.terms.nccl_version;
    hello.process = process_number();
    hello.serial = serial_;
    hello.deft_version = build_version();
    hello.host = own_host();
    hello.settings = core_.terms.settings;
    way_->send(wire::make_frame(wire::Type::Hello, council(), rank(), wire::encode(hello)));
}

// ---- the way to the leader ----------------------------------------------------------------------

void MemberRole::way_opened() {
    if (state_ == State::Waiting) {
        state_ = State::Greeted;
        greet();
    } else if (returning_) {
        greet();
        // One that has only said Ack is asked for it again; the others hear what they have missed.
        returning_ = state_ != State::Acked;
        back_by_ = returning_ ? back_by_ : kNever;
    }
}

void MemberRole::way_lost(const std::string& how, bool refused) {
    switch (state_) {
        case State::Lost:
        case State::Waiting:
        case State::Left:
            return;
        case State::Greeted:
        case State::Deferred:
            // Perhaps a full queue at the leader; it has promised nothing yet.
            state_ = State::Waiting;
            return;
        case State::Acked:
        case State::Open:
        case State::Doubt:
        case State::Done:
            break;
    }
    if (refused && state_ != State::Doubt) {
        lost(how, true);
        if (state_ != State::Doubt) {
            return;
        }
    }
    if (!returning_) {
        returning_ = true;
        back_by_ = state_ == State::Doubt ? kNever : Clock::now() + pace().back;
    }
    posted_ = 0;
    questions_.insert(questions_.end(), asking_.begin(), asking_.end());
    asking_.clear();
}

void MemberRole::leader_gone() {
    if (returning_) {
        lost("is gone");
    }
}

void MemberRole::take(const wire::Header& header, std::span<const std::byte> payload) {
    if (state_ != State::Left && !take_frame(header, payload)) {
        lost("sent nonsense", true);
    }
}

// A relay sends to everyone as soon as it has seen this rank's Hello, which the leader has not: of
// what was said to the others meanwhile, the leader tells this rank again when it hears the Hello.
bool MemberRole::ahead_of_hello(wire::Type type) const {
    switch (type) {
        case wire::Type::Prepare:
        case wire::Type::Closed:
            return state_ == State::Acked || returning_;
        case wire::Type::Decision:
            return state_ == State::Acked;
        default:
            return false;
    }
}

// False: nonsense.
bool MemberRole::take_frame(const wire::Header& header, std::span<const std::byte> payload) {
    if (ahead_of_hello(header.type)) {
        return true;
    }
    switch (header.type) {
        case wire::Type::AllHere:
            return take_all_here();
        case wire::Type::Verdict:
            return take_verdict(payload);
        case wire::Type::Prepare:
            return take_proposal(payload);
        case wire::Type::Decision:
            return take_decision(payload);
        case wire::Type::Closed:
            if (state_ == State::Open) {
                state_ = State::Done;  // the way stays, for the children
                core_.close(way_->leader() + " says that a rank is gone");
            }
            return state_ == State::Done || state_ == State::Doubt;
        case wire::Type::Found:
            return take_meeting(payload);
        case wire::Type::Resumed:
            return take_resumed(payload);
        case wire::Type::Leave:
            lost("has left");
            return true;
        case wire::Type::Post:
        case wire::Type::Ask:
        case wire::Type::Hello:
        case wire::Type::Ack:
        case wire::Type::Report:
        case wire::Type::Answer:
        case wire::Type::Ready:
        case wire::Type::Gone:
        case wire::Type::Serve:
        case wire::Type::Offer:
        case wire::Type::Move:
        case wire::Type::Join:
        case wire::Type::Name:
            break;
    }
    return false;
}

bool MemberRole::take_all_here() {
    if (state_ != State::Greeted && state_ != State::Deferred && state_ != State::Acked) {
        return false;
    }
    state_ = State::Acked;
    say(wire::Type::Ack, {});
    return true;
}

bool MemberRole::take_verdict(std::span<const std::byte> payload) {
    wire::Verdict verdict;
    if (!wire::decode(payload, verdict)) {
        return false;
    }
    if (verdict.on) {
        return take_on();
    }
    if (returning_ && (state_ == State::Open || state_ == State::Doubt || state_ == State::Done)) {
        lost("says: " + verdict.reason);  // it has come back too late
        return true;
    }
    if (state_ != State::Acked && state_ != State::Greeted && state_ != State::Deferred) {
        return false;
    }
    if (verdict.again) {
        state_ = State::Deferred;
        defer(verdict.reason, Clock::now());
    } else {
        off(verdict.reason, verdict.ended);
    }
    return true;
}

bool MemberRole::take_on() {
    if (state_ == State::Acked) {
        state_ = State::Open;
        deadline_ = asked_until_ = kNever;
        core_.set_verdict(Verdict::On, "");
    }
    return state_ == State::Open || state_ == State::Doubt || state_ == State::Done;
}

bool MemberRole::take_resumed(std::span<const std::byte> payload) {
    std::uint64_t heard = 0;
    if (!wire::decode_resumed(payload, heard) || heard > reported_) {
        return false;
    }
    returning_ = false;
    back_by_ = kNever;
    if (state_ == State::Doubt) {
        return true;
    }
    const std::uint64_t first = reported_ - reports_.size();
    if (heard < first) {
        lost("has missed too many reports", true);
        return true;
    }
    for (std::uint64_t i = heard; i < reported_ && way_ != nullptr; ++i) {
        way_->send(reports_[static_cast<std::size_t>(i - first)]);
    }
    if (serial_ != 0 && answered_) {
        answer(serial_, *answered_);
    }
    return true;
}

bool MemberRole::take_meeting(std::span<const std::byte> payload) {
    wire::Meeting meeting;
    if (!wire::decode(payload, meeting)) {
        return false;
    }
    for (std::size_t i = 0; i < asking_.size();) {
        if (asking_[i].child == meeting.child) {
            const CouncilRef child = std::move(asking_[i].council);
            asking_.erase(asking_.begin() + static_cast<std::ptrdiff_t>(i));
            Council::Core::tell_child(*child, &meeting, "what the leader said is damaged");
        } else {
            ++i;
        }
    }
    return true;
}

void MemberRole::report(std::span<const std::byte> payload) {
    if (state_ != State::Open || way_ == nullptr) {
        return;
    }
    reports_.push_back(wire::make_frame(wire::Type::Report, council(), rank(), payload));
    report_bytes_ += reports_.back()->size();
    ++reported_;
    while (reports_.size() > kReportsKept ||
           (report_bytes_ > kReportBytesKept && reports_.size() > 1)) {
        report_bytes_ -= reports_.front()->size();
        reports_.pop_front();
    }
    if (!returning_) {
        way_->send(reports_.back());
    }
}

void MemberRole::off(const std::string& why, bool ended) {
    bow_out();
    state_ = State::Done;
    deadline_ = asked_until_ = back_by_ = kNever;
    returning_ = false;
    core_.set_verdict(Verdict::Off, why, {ended, false});
}

// Off for now. The leader asks again, so this rank stays, or goes on looking for the leader.
void MemberRole::defer(const std::string& why, Clock::time_point now) {
    const auto& again = core_.terms.again;
    if (again.empty()) {
        off(why);
        return;
    }
    deadline_ = kNever;
    if (asked_until_ == kNever) {
        asked_until_ = now + std::reduce(again.begin(), again.end()) +
                       again.size() * core_.terms.timeout + 5 * kLater;
    }
    core_.set_verdict(Verdict::Off, why, {false, true});
}

// leader_may_be_well: it is not to be reached, and that is all.
void MemberRole::lost(const std::string& how, bool leader_may_be_well) {
    const std::string why = (way_ != nullptr ? way_->leader() : "the leader") + " " + how;
    switch (state_) {
        case State::Lost:
        case State::Waiting:
        case State::Left:
            return;
        case State::Greeted:
        case State::Deferred:
        case State::Acked:
            // Going Off alone is safe: the leader hears of it, and proposes nothing.
            if (state_ == State::Acked || core_.council->verdict() != Verdict::Pending) {
                off(why);
            }
            return;
        case State::Open:
            back_by_ = kNever;
            if (promised() && leader_may_be_well) {
                state_ = State::Doubt;
                core_.close(why, true);
                return;
            }
            break;
        case State::Doubt:
        case State::Done:
            break;
    }
    bow_out();
    state_ = State::Done;
    returning_ = false;
    back_by_ = kNever;
    core_.close(why);
    core_.give_up_decision();
}

// Has no way to the leader. Where there is one, a leader that is stopped answers when it goes on.
bool MemberRole::away() const {
    return returning_ && !(way_ != nullptr && way_->open());
}

void MemberRole::overslept(Clock::duration slept) {
    put_off(deadline_, slept);
    put_off(asked_until_, slept);
    put_off(back_by_, slept);
}

Clock::time_point MemberRole::due() const {
    return std::min({deadline_, asked_until_, away() ? back_by_ : kNever});
}

}  // namespace deft::agreement
