// SPDX-License-Identifier: Apache-2.0
// This process's way to a leader: one connection for all its councils that are led there. The first
// process of a host to come connects to the leader and relays for the others, which find it by a
// socket of the host's. One whose relay is gone, or does not answer, connects for itself.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shim/agreement/link.h"
#include "shim/agreement/neighbours.h"

namespace deft::agreement {

class MemberRole;

class Uplink final : public LinkOwner {
public:
    Uplink(Links& links, const wire::Trailer& trailer);
    Uplink(const Uplink&) = delete;
    // Another trailer of the same process may name further addresses.
    void learn(const wire::Trailer& trailer);

    // The process that it leads to.
    std::uint64_t process() const { return process_; }
    void attach(MemberRole& role);
    void detach(MemberRole& role);

    bool open() const { return state_ == State::Up; }
    // Sends a frame; dropped if the way is not open.
    void send(const wire::Frame& frame);
    // "the leader at 10.0.0.1:4711", and why the last attempt to reach it has failed; "" if not.
    std::string leader() const;
    const std::string& problem() const { return problem_; }

    void step(Clock::time_point now);
    Clock::time_point due() const;
    void overslept(Clock::duration slept);
    // Nobody needs it, and what was said is on its way.
    bool idle(Clock::time_point now) const;
    // The process ends: what its neighbours have said already is passed on.
    void last_words();

    bool take(Link& link, const wire::Header& header, std::span<const std::byte> payload) override;
    void ended(Link& link, const std::string& how) override;
    void connected(Link& link) override;

private:
    enum class State : std::uint8_t {
        Waiting,     // until the next attempt
        Asking,      // connected to a relay, which has to say that it has a way
        Connecting,  // to the leader; the kernel is at it
        Up
    };
    using Roles = std::vector<MemberRole*>;

    Links& links_;
    const std::uint64_t process_;
    std::vector<wire::Endpoint> endpoints_;
    State state_ = State::Waiting;
    std::unique_ptr<Link> up_;
    // Where the leader has sent this host: one that relays for it. It is tried before up_ is left.
    struct Other {
        std::unique_ptr<Link> link;
        std::vector<wire::Endpoint> endpoints;  // still to be tried
        wire::Nonce secret{};
        Clock::time_point until = kNever;
    };
    Other other_;
    bool relayed_ = false;               // up_ leads to a relay
    int relays_lost_ = 0;                // while they were asked, in a row
    bool try_relay_ = true;              // the next attempt may
    Clock::time_point until_{};          // Waiting: begin then; Asking, Connecting: give up then
    Clock::time_point linger_ = kNever;  // nobody needs it: close then
    std::size_t endpoint_ = 0;           // of the attempt in progress, or the next
    std::size_t refused_ = 0;            // attempts in a row, by a host that is there
    Clock::time_point refused_since_{};  // the first of them
    Clock::duration pause_{};            // after all addresses have failed
    Clock::time_point heard_{};          // relayed: the relay's last word
    std::string problem_;
    std::map<std::uint64_t, Roles> roles_;  // by council
    Neighbours neighbours_;

    void begin(Clock::time_point now);
    bool ask_relay(Clock::time_point now);
    void connect(Clock::time_point now);
    void attempt_failed(const std::string& why, bool refused, Clock::time_point now);
    void came_up();
    bool take_order(const wire::Header& header, std::span<const std::byte> payload);
    void offer_to_serve();
    void try_other();
    void move();
    void went_down(const std::string& how, bool relay, bool refused);
    Roles all_roles() const;
    bool attached(MemberRole* role) const;
    void deliver(const wire::Header& header, std::span<const std::byte> payload);
};

}  // namespace deft::agreement
