// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/uplink.h"

#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "shim/agreement/member_role.h"
#include "shim/agreement/process_number.h"
#include "shim/agreement/surroundings.h"

namespace deft::agreement {
namespace {

constexpr auto kAttempt = std::chrono::seconds(2);
// After all addresses have failed; twice as long each time.
constexpr auto kFirstPause = std::chrono::milliseconds(200);
constexpr auto kLongestPause = std::chrono::seconds(5);
constexpr auto kLinger = std::chrono::seconds(2);
constexpr int kRelayRaces = 3;

// An IPv6 link-local address is the same on every link: the interface belongs to it, and each host
// numbers its own. So it may be behind any of this host's.
std::vector<wire::Endpoint> reachable(const wire::Endpoint& endpoint) {
    if (endpoint.address.family != AF_INET6 || !endpoint.address.link_local()) {
        return {endpoint};
    }
    std::vector<wire::Endpoint> all;
    for (const std::uint32_t link : Surroundings::process().links) {
        all.push_back(endpoint);
        all.back().address.scope = link;
    }
    return all.empty() ? std::vector<wire::Endpoint>{endpoint} : all;
}

constexpr auto kRelayPause = std::chrono::milliseconds(20);

}  // namespace

Uplink::Uplink(Links& links, const wire::Trailer& trailer)
    : links_(links),
      process_(wire::process_of(trailer.nonce)),
      pause_(kFirstPause),
      neighbours_(links) {
    learn(trailer);
}

void Uplink::learn(const wire::Trailer& trailer) {
    for (std::size_t i = 0; i < trailer.count; ++i) {
        for (const wire::Endpoint& endpoint : reachable(trailer.endpoints[i])) {
            const bool known = std::any_of(
                endpoints_.begin(), endpoints_.end(), [&endpoint](const wire::Endpoint& other) {
                    return other.port == endpoint.port && other.address == endpoint.address &&
                           other.address.scope == endpoint.address.scope;
                });
            if (!known) {
                endpoints_.push_back(endpoint);
            }
        }
    }
}

void Uplink::attach(MemberRole& role) {
    roles_[role.council()].push_back(&role);
    linger_ = kNever;
    if (state_ == State::Up) {
        role.way_opened();
    }
}

void Uplink::detach(MemberRole& role) {
    const auto council = roles_.find(role.council());
    if (council == roles_.end()) {
        return;
    }
    std::erase(council->second, &role);
    if (council->second.empty()) {
        roles_.erase(council);
    }
    if (roles_.empty()) {
        linger_ = Clock::now() + kLinger;
    }
}

bool Uplink::attached(MemberRole* role) const {
    return std::any_of(roles_.begin(), roles_.end(), [role](const auto& council) {
        return std::find(council.second.begin(), council.second.end(), role) !=
               council.second.end();
    });
}

Uplink::Roles Uplink::all_roles() const {
    Roles all;
    for (const auto& [council, roles] : roles_) {
        all.insert(all.end(), roles.begin(), roles.end());
    }
    return all;
}

void Uplink::send(const wire::Frame& frame) {
    if (state_ == State::Up) {
        up_->send(frame);
    }
}

std::string Uplink::leader() const {
    const wire::Endpoint& endpoint = endpoints_[endpoint_];
    const std::string address = endpoint.address.text();
    return "the leader at " +
           (endpoint.address.family == AF_INET6 ? "[" + address + "]" : address) + ":" +
           std::to_string(endpoint.port);
}

Clock::time_point Uplink::due() const {
    return std::min({other_.until, state_ == State::Up ? kNever : until_, linger_,
                     neighbours_.due(),
                     state_ == State::Up && relayed_ ? heard_ + pace().silence : kNever});
}

void Uplink::overslept(Clock::duration slept) {
    neighbours_.overslept(slept);
    put_off(other_.until, slept);
    put_off(heard_, slept);
    put_off(refused_since_, slept);
    if (state_ == State::Asking || state_ == State::Connecting) {
        put_off(until_, slept);
    }
}

bool Uplink::idle(Clock::time_point now) const {
    return roles_.empty() && neighbours_.empty() &&
           (state_ != State::Up || up_->flushed() || now >= linger_);
}

void Uplink::step(Clock::time_point now) {
    neighbours_.step(now);
    if (now >= other_.until) {
        try_other();
    }
    if (roles_.empty() && now >= linger_) {
        linger_ = kNever;
    }
    switch (state_) {
        case State::Waiting:
            if (now >= until_ && !(roles_.empty() && neighbours_.empty())) {
                begin(now);
            }
            break;
        case State::Asking:
        case State::Connecting:
            if (now >= until_) {
                up_.reset();
                attempt_failed("no answer from " + leader(), false, now);
            }
            break;
        case State::Up:
            if (relayed_ && now >= heard_ + pace().silence) {
                up_->end("does not answer");
            }
            break;
    }
}

void Uplink::begin(Clock::time_point now) {
    const bool relay = try_relay_ && !neighbours_.serving();
    try_relay_ = false;
    if (!relay || !ask_relay(now)) {
        connect(now);
    }
}

// False: this process has to connect for itself, and relays for the others if none does.
bool Uplink::ask_relay(Clock::time_point now) {
    const std::string name = relay_name(process_);
    for (int race = 0; race < kRelayRaces; ++race) {
        if (UniqueFd fd = call_relay(name)) {
            up_ = std::make_unique<Link>(links_, std::move(fd), *this);
            relayed_ = true;
            state_ = State::Asking;
            until_ = now + kAttempt;
            return true;
        }
        if (errno != ECONNREFUSED || neighbours_.serve(name) || errno != EADDRINUSE) {
            return false;
        }
    }
    return false;
}

void Uplink::connect(Clock::time_point now) {
    relayed_ = false;
    const wire::Endpoint& endpoint = endpoints_[endpoint_];
    UniqueFd fd(::socket(endpoint.address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
        attempt_failed(std::string("socket: ") + std::strerror(errno), false, now);
        return;
    }
    tune(fd.get());
    sockaddr_storage storage;
    const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0 &&
        errno != EINPROGRESS) {
        attempt_failed(std::string("connect: ") + std::strerror(errno), errno == ECONNREFUSED, now);
        return;
    }
    up_ = std::make_unique<Link>(links_, std::move(fd), *this, true);
    state_ = State::Connecting;
    until_ = now + kAttempt;
}

void Uplink::attempt_failed(const std::string& why, bool refused, Clock::time_point now) {
    state_ = State::Waiting;
    until_ = now;
    if (relayed_) {
        relayed_ = false;
        DEFT_DEBUG("no way to a leader through another process of this host: %s", why.c_str());
        return;  // connects for itself, at once
    }
    problem_ = why;
    if (refused && refused_ == 0) {
        refused_since_ = now;
    }
    refused_ = refused ? refused_ + 1 : 0;
    endpoint_ = (endpoint_ + 1) % endpoints_.size();
    if (endpoint_ != 0) {
        return;
    }
    try_relay_ = true;  // another process of this host may have found the leader meanwhile
    until_ = now + pause_;
    pause_ = std::min<Clock::duration>(2 * pause_, kLongestPause);
    if (refused_ < endpoints_.size()) {
        return;
    }
    // Nobody listens there: not yet, not now (a firewall that is loaded, a full queue), or no more.
    const Clock::time_point gone = refused_since_ + pace().back;
    until_ = now < gone ? std::min(until_, gone) : until_;
    if (now >= gone) {
        neighbours_.way_lost();  // those who ask for a way need not wait
        for (MemberRole* const role : all_roles()) {
            if (attached(role)) {
                role->leader_gone();
            }
        }
    }
}

void Uplink::connected(Link& link) {
    if (&link == other_.link.get()) {
        link.send(wire::make_frame(wire::Type::Join, 0, 0, wire::encode_join(other_.secret)));
    } else {
        came_up();
    }
}

// ---- a tree of hosts ----------------------------------------------------------------------------

// What the leader says to this host. False: nonsense.
bool Uplink::take_order(const wire::Header& header, std::span<const std::byte> payload) {
    wire::Trailer trailer;
    if (relayed_ || state_ != State::Up) {
        return false;
    }
    if (header.type == wire::Type::Serve) {
        offer_to_serve();
        return true;
    }
    if (!wire::decode_offer(payload, trailer)) {
        return false;
    }
    other_ = Other{};
    other_.secret = trailer.nonce;
    for (std::size_t i = trailer.count; i > 0; --i) {  // the first is tried first
        const std::vector<wire::Endpoint> found = reachable(trailer.endpoints[i - 1]);
        other_.endpoints.insert(other_.endpoints.end(), found.rbegin(), found.rend());
    }
    try_other();
    return true;
}

void Uplink::offer_to_serve() {
    wire::Trailer offer;
    if (neighbours_.serve_hosts(offer)) {
        up_->send(wire::make_frame(wire::Type::Offer, 0, 0, wire::encode_offer(offer)));
    }
}

// None is left: the way stays as it is.
void Uplink::try_other() {
    other_.link.reset();
    other_.until = kNever;
    while (!other_.endpoints.empty() && other_.link == nullptr) {
        const wire::Endpoint endpoint = other_.endpoints.back();
        other_.endpoints.pop_back();
        UniqueFd fd(
            ::socket(endpoint.address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        sockaddr_storage storage;
        const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
        if (fd && (::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) == 0 ||
                   errno == EINPROGRESS)) {
            tune(fd.get());
            other_.link = std::make_unique<Link>(links_, std::move(fd), *this, true);
            other_.until = Clock::now() + kAttempt;
        }
    }
}

// It relays: from now on it is the way. The leader, which has sent this host there, does not take
// the end of the old one for the host's.
void Uplink::move() {
    const std::unique_ptr<Link> old = std::move(up_);
    went_down("has sent this host to another one", true, false);
    up_ = std::move(other_.link);
    other_ = Other{};
    relayed_ = true;
    came_up();
}

void Uplink::came_up() {
    state_ = State::Up;
    heard_ = Clock::now();
    pause_ = kFirstPause;
    refused_ = 0;
    relays_lost_ = 0;
    problem_.clear();
    if (!relayed_) {
        up_->send(wire::make_frame(wire::Type::Name, 0, 0, wire::encode_name(process_number())));
    }
    for (MemberRole* const role : all_roles()) {
        if (attached(role)) {
            role->way_opened();
        }
    }
    neighbours_.way_opened(*up_);
}

void Uplink::ended(Link& link, const std::string& how) {
    if (&link == other_.link.get()) {
        try_other();
        return;
    }
    const bool refused = !link.stream().broken() && !link.stream().closed_by_peer();
    up_.reset();
    other_ = Other{};
    const Clock::time_point now = Clock::now();
    if (state_ == State::Asking && ++relays_lost_ < kRelayRaces) {
        // It was ending: the name may be free now.
        state_ = State::Waiting;
        relayed_ = false;
        try_relay_ = true;
        until_ = now + kRelayPause;
        return;
    }
    if (state_ != State::Up) {
        attempt_failed(how, how.find(std::strerror(ECONNREFUSED)) != how.npos, now);
        return;
    }
    went_down(how, relayed_, !relayed_ && refused);
}

// relay: the leader itself may be well.
void Uplink::went_down(const std::string& how, bool relay, bool refused) {
    state_ = State::Waiting;
    relayed_ = false;
    try_relay_ = true;
    until_ = relay ? Clock::now() : Clock::now() + pause_;
    problem_ = leader() + " " + how;
    neighbours_.way_lost();
    for (MemberRole* const role : all_roles()) {
        if (attached(role)) {
            role->way_lost(how, refused);
        }
    }
}

bool Uplink::take(Link& link, const wire::Header& header, std::span<const std::byte> payload) {
    if (&link == other_.link.get()) {
        if (header.type != wire::Type::Ready) {
            return false;
        }
        move();
        return true;
    }
    heard_ = Clock::now();
    if (header.type == wire::Type::Serve || header.type == wire::Type::Move) {
        return take_order(header, payload);
    }
    if (header.type == wire::Type::Ready) {
        if (state_ == State::Asking) {
            came_up();
        }
        return relayed_;
    }
    if (state_ != State::Up) {
        return false;
    }
    neighbours_.pass_down(header, up_->whole());
    deliver(header, payload);
    return true;
}

void Uplink::deliver(const wire::Header& header, std::span<const std::byte> payload) {
    const auto council = roles_.find(header.council);
    if (council == roles_.end()) {
        return;
    }
    const Roles roles = council->second;
    for (MemberRole* const role : roles) {
        if ((header.rank == wire::kEveryone || header.rank == role->rank()) && attached(role)) {
            role->take(header, payload);
        }
    }
}

void Uplink::last_words() {
    neighbours_.drain();
}

}  // namespace deft::agreement
