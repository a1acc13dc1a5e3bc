// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/member_role.h"

#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/build_version.h"
#include "base/log.h"

namespace deft::agreement {
namespace {

constexpr auto kAttempt = std::chrono::seconds(2);
constexpr auto kPause = std::chrono::milliseconds(200);  // after all addresses have failed
constexpr auto kLastWord = std::chrono::seconds(2);

}  // namespace

MemberRole::MemberRole(Council::Core& core, const wire::Trailer& trailer)
    : core_(core), trailer_(trailer), attempt_until_(Clock::now()) {}

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
    attempt_until_ = Clock::now();
}

// Posts and questions of this rank's children go to the leader as soon as, and as long as, there is
// a connection to it.
void MemberRole::serve_children() {
    const bool later =
        state_ == State::Lost || state_ == State::Waiting || state_ == State::Connecting;
    if (later) {
        return;
    }
    if (stream_.open() && state_ != State::Left) {
        for (const wire::Meeting& post : posts_) {
            (void)stream_.send(wire::Type::Post, wire::encode(post));
        }
        for (const Council::Core::Question& question : questions_) {
            (void)stream_.send(wire::Type::Ask, wire::encode_question(question.child));
            asking_.push_back(question);
        }
        questions_.clear();
    }
    posts_.clear();
    if (!stream_.open() || state_ == State::Left) {
        const std::string why = "the communicator it was made from has no agreement any more";
        for (auto* list : {&questions_, &asking_}) {
            for (const Council::Core::Question& question : *list) {
                Council::Core::tell_child(question.council, nullptr, why);
            }
            list->clear();
        }
    }
}

std::string MemberRole::leader() const {
    const wire::Endpoint& endpoint = trailer_.endpoints[endpoint_];
    const std::string address = endpoint.address.text();
    return "the leader at " +
           (endpoint.address.family == AF_INET6 ? "[" + address + "]" : address) + ":" +
           std::to_string(endpoint.port);
}

void MemberRole::step(Clock::time_point now) {
    Wishes wishes = take_wishes(now);
    core_.catch_up();
    if (wishes.leave && state_ != State::Left) {
        leave(now);
    }
    if (state_ == State::Left && (stream_.flushed() || now >= linger_)) {
        stream_.close();
        linger_ = kNever;
    }
    if (now >= deadline_) {
        off(state_ == State::Lost
                ? "the first rank of a split communicator has not said where to meet"
            : problem_.empty() ? leader() + " has not decided in time"
                               : leader() + " does not answer (" + problem_ + ")");
    }
    if (state_ == State::Waiting && now >= attempt_until_) {
        connect(now);
    } else if (state_ == State::Connecting && now >= attempt_until_) {
        try_next(now, "no answer from " + leader());
    }
    for (const std::vector<std::byte>& report : wishes.reports) {
        if (state_ == State::Open) {
            (void)stream_.send(wire::Type::Report, report);
        }
    }
    for (const auto& [serial, yes] : wishes.answers) {
        answer(serial, yes);
    }
    serve_children();
    const bool connected =
        state_ == State::Greeted || state_ == State::Acked || state_ == State::Open;
    if (connected && !stream_.open()) {  // it broke while something was sent
        lost("is gone", now);
    }
}

MemberRole::Wishes MemberRole::take_wishes(Clock::time_point now) {
    Wishes wishes;
    const Monitor::Lock lock(core_.monitor);
    wishes.leave = core_.left || core_.abandoned;
    if (core_.created && deadline_ == kNever && core_.council->verdict() == Verdict::Pending) {
        // Somewhat longer than the leader waits, so that its reason, which names the rank that is
        // at fault, gets here first.
        deadline_ = now + core_.terms.timeout + core_.terms.timeout / 4 + kAttempt;
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

void MemberRole::leave(Clock::time_point now) {
    if (core_.council->verdict() == Verdict::Pending) {
        core_.set_verdict(Verdict::Off, "this rank has left");
    }
    core_.close("this rank has given up waiting for a decision");
    state_ = State::Left;
    linger_ = now + kLastWord;
    attempt_until_ = deadline_ = kNever;
    (void)stream_.send(wire::Type::Leave, {});
}

void MemberRole::connect(Clock::time_point now) {
    const wire::Endpoint& endpoint = trailer_.endpoints[endpoint_];
    UniqueFd fd(::socket(endpoint.address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
        try_next(now, std::string("socket: ") + std::strerror(errno));
        return;
    }
    tune(fd.get());
    sockaddr_storage storage;
    const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0 &&
        errno != EINPROGRESS) {
        try_next(now, std::string("connect: ") + std::strerror(errno));
        return;
    }
    stream_ = Stream(std::move(fd));
    attempt_until_ = now + kAttempt;
    state_ = State::Connecting;
}

void MemberRole::greet(Clock::time_point now) {
    wire::Hello hello;
    hello.nonce = trailer_.nonce;
    hello.nranks = static_cast<std::uint32_t>(core_.council->nranks());
    hello.rank = static_cast<std::uint32_t>(core_.council->rank());
    hello.nccl_version = core_.terms.nccl_version;
    hello.deft_version = build_version();
    hello.host = own_host();
    hello.settings = core_.terms.settings;
    state_ = State::Greeted;
    attempt_until_ = kNever;
    problem_.clear();
    if (!stream_.send(wire::Type::Hello, wire::encode(hello))) {
        try_next(now, "the connection to " + leader() + " broke");
    }
}

void MemberRole::try_next(Clock::time_point now, const std::string& problem) {
    problem_ = problem;
    stream_.close();
    endpoint_ = (endpoint_ + 1) % trailer_.count;
    attempt_until_ = endpoint_ == 0 ? now + kPause : now;
    state_ = State::Waiting;
}

void MemberRole::gather(PollSet& set) {
    stream_.gather(set);
    if (state_ == State::Connecting && !set.empty() && stream_.open()) {
        set.back().events = POLLOUT;
    }
}

void MemberRole::ready(const PollSet& set, Clock::time_point now) {
    const short events = stream_.ready(set);
    if (events == 0) {
        return;
    }
    if (state_ == State::Connecting) {
        int error = 0;
        socklen_t length = sizeof(error);
        (void)::getsockopt(set[stream_.place()].fd, SOL_SOCKET, SO_ERROR, &error, &length);
        if (error != 0) {
            try_next(now, std::string("connect: ") + std::strerror(error));
        } else {
            greet(now);
        }
        return;
    }
    if ((events & POLLOUT) != 0 && !stream_.flush()) {
        lost("is gone", now);
        return;
    }
    take_all(stream_.fill(), now);
}

void MemberRole::take_all(bool alive, Clock::time_point now) {
    wire::Header header;
    std::span<const std::byte> payload;
    for (;;) {
        switch (stream_.next(header, payload)) {
            case Stream::Next::Frame:
                if (!take(header, payload)) {
                    return;
                }
                continue;
            case Stream::Next::Bad:
                lost(stream_.other_version() ? "runs another release of deft"
                     : stream_.damaged()     ? "sent a damaged frame"
                                             : "sent nonsense",
                     now);
                return;
            case Stream::Next::None:
                if (!alive) {
                    lost("is gone", now);
                }
                return;
        }
    }
}

// False if there is nothing more to read.
bool MemberRole::take(const wire::Header& header, std::span<const std::byte> payload) {
    if (state_ == State::Left) {
        return true;
    }
    bool good = false;
    switch (header.type) {
        case wire::Type::AllHere:
            good = state_ == State::Greeted;
            if (good) {
                state_ = State::Acked;
                (void)stream_.send(wire::Type::Ack, {});
            }
            break;
        case wire::Type::Verdict:
            good = take_verdict(payload);
            if (good && state_ == State::Done) {
                return false;
            }
            break;
        case wire::Type::Prepare:
            good = take_proposal(payload);
            break;
        case wire::Type::Decision:
            good = take_decision(payload);
            break;
        case wire::Type::Closed:
            good = state_ == State::Open || state_ == State::Done;
            if (state_ == State::Open) {
                state_ = State::Done;  // the connection stays, for the children
                core_.close(leader() + " says that a rank is gone");
            }
            break;
        case wire::Type::Found:
            good = take_meeting(payload);
            break;
        case wire::Type::Leave:
            lost("has left", Clock::now());
            return false;
        case wire::Type::Post:
        case wire::Type::Ask:
        case wire::Type::Hello:
        case wire::Type::Ack:
        case wire::Type::Report:
        case wire::Type::Answer:
            break;
    }
    if (!good) {
        lost("sent nonsense", Clock::now());
    }
    return good;
}

bool MemberRole::take_verdict(std::span<const std::byte> payload) {
    wire::Verdict verdict;
    if (!wire::decode(payload, verdict)) {
        return false;
    }
    const bool acked = state_ == State::Acked;
    if (!verdict.on && (acked || state_ == State::Greeted)) {
        off(verdict.reason, verdict.ended);
        return true;
    }
    if (!verdict.on || !acked) {
        return false;
    }
    state_ = State::Open;
    deadline_ = kNever;
    core_.set_verdict(Verdict::On, "");
    return true;
}

bool MemberRole::take_proposal(std::span<const std::byte> payload) {
    wire::Prepare prepare;
    const bool good = wire::decode(payload, prepare) && state_ == State::Open && serial_ == 0 &&
                      prepare.serial != 0;
    Proposal proposal;
    proposal.serial = prepare.serial;
    proposal.switch_call = prepare.switch_call;
    proposal.body.assign(prepare.body.begin(), prepare.body.end());
    digest_ = wire::digest_of(proposal.serial, proposal.switch_call, proposal.body);
    if (!good || digest_ != prepare.digest) {
        return false;
    }
    serial_ = prepare.serial;
    switch (core_.ask(proposal)) {
        case Answer::No:
            answer(serial_, false);
            break;
        case Answer::Yes:
            answer(serial_, true);
            break;
        case Answer::Later:
            break;
    }
    return true;
}

bool MemberRole::take_decision(std::span<const std::byte> payload) {
    wire::Word word;
    if (!wire::decode(payload, word) || state_ != State::Open || word.serial != serial_ ||
        word.digest != digest_) {
        return false;
    }
    serial_ = 0;
    if (core_.begin_decision(word.serial)) {
        core_.finish_decision(word.serial, word.yes);
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
            Council* const child = asking_[i].council;
            asking_.erase(asking_.begin() + static_cast<std::ptrdiff_t>(i));
            Council::Core::tell_child(child, &meeting, "what the leader said is damaged");
        } else {
            ++i;
        }
    }
    return true;
}

void MemberRole::answer(std::uint64_t serial, bool yes) {
    if (state_ == State::Open && serial == serial_) {
        (void)stream_.send(wire::Type::Answer, wire::encode(wire::Word{serial, yes, digest_}));
    }
}

void MemberRole::off(const std::string& why, bool ended) {
    state_ = State::Done;
    stream_.close();
    attempt_until_ = deadline_ = kNever;
    core_.set_verdict(Verdict::Off, why, ended);
}

void MemberRole::lost(const std::string& how, Clock::time_point now) {
    switch (state_) {
        case State::Lost:
        case State::Waiting:
        case State::Connecting:
        case State::Greeted:
            // Perhaps a full queue at the leader; it has promised nothing yet.
            try_next(now, leader() + " " + how);
            attempt_until_ = now + kPause;
            return;
        case State::Acked:
            // Going Off alone is safe: the leader notices, and proposes nothing.
            off(leader() + " " + how);
            return;
        case State::Open:
            state_ = State::Done;
            stream_.close();
            core_.close(leader() + " " + how);
            return;
        case State::Done:
        case State::Left:
            stream_.close();
            return;
    }
}

Clock::time_point MemberRole::due() const {
    return std::min({attempt_until_, deadline_, linger_});
}

}  // namespace deft::agreement
