// SPDX-License-Identifier: Apache-2.0
// The part of every rank but the leader's: says hello, answers, reports.
#pragma once

#include <deque>
#include <list>

#include "shim/agreement/core.h"
#include "shim/agreement/uplink.h"

namespace deft::agreement {

// Gives the way to the leader that the trailer names; by process, as long as anybody needs it.
class Ways {
public:
    virtual Uplink& way_to(const wire::Trailer& trailer) = 0;

protected:
    ~Ways() = default;
};

class MemberRole final : public Role {
public:
    MemberRole(Council::Core& core, Ways& ways, const wire::Trailer& trailer);
    // Of a child: the trailer is still to be found.
    MemberRole(Council::Core& core, Ways& ways) : core_(core), ways_(ways), state_(State::Lost) {}
    ~MemberRole() override;

    std::uint64_t council() const { return wire::council_of(trailer_.nonce); }
    std::uint32_t rank() const { return static_cast<std::uint32_t>(core_.council->rank()); }

    void step(Clock::time_point now) override;
    Clock::time_point due() const override;
    bool finished() const override { return state_ == State::Left && asking_.empty(); }
    void overslept(Clock::duration slept) override;
    void found(const wire::Trailer* trailer, const std::string& why) override;

    // ---- of the way to the leader
    void way_opened();
    // refused: what came was not the leader's. Else the leader may be well.
    void way_lost(const std::string& how, bool refused);
    // There is its host, but nobody listens.
    void leader_gone();
    void take(const wire::Header& header, std::span<const std::byte> payload);

private:
    enum class State : std::uint8_t {
        Lost,      // a child's: does not know where to go
        Waiting,   // for a way to the leader
        Greeted,   // hello said
        Deferred,  // Off for now; the leader asks again
        Acked,     // everybody is there; the verdict is to come
        Open,
        Doubt,  // closed, but looks for the leader's decision on what it has said yes to
        Done,   // Off, or closed
        Left
    };

    // What this rank's other threads have asked for since the last step.
    struct Wishes {
        bool leave = false;
        std::vector<std::pair<std::uint64_t, bool>> answers;
        std::list<std::vector<std::byte>> reports;
    };

    Council::Core& core_;
    Ways& ways_;
    wire::Trailer trailer_;
    State state_ = State::Waiting;
    Uplink* way_ = nullptr;
    // On its way to the leader once more: nothing but the hello is said before the leader has
    // answered it.
    bool returning_ = false;
    bool set_out_ = false;                // looks for a way since its first step
    Clock::time_point back_by_ = kNever;  // returning, without a way: gives up then
    Clock::time_point deadline_ = kNever;
    Clock::time_point asked_until_ = kNever;  // Off for now: for good then
    std::uint64_t serial_ = 0;                // of the proposal in hand, or 0
    std::uint64_t last_serial_ = 0;           // of all proposals so far
    std::uint64_t digest_ = 0;                // of what this rank has of it
    std::optional<bool> answered_;            // what was said to it
    // The last reports, for a leader that has not heard them.
    std::deque<wire::Frame> reports_;
    std::size_t report_bytes_ = 0;
    std::uint64_t reported_ = 0;                      // how many in all
    std::deque<wire::Meeting> posts_;                 // the last
    std::size_t posted_ = 0;                          // of them, sent
    std::vector<Council::Core::Question> questions_;  // not sent yet
    std::vector<Council::Core::Question> asking_;     // sent

    void set_out();
    void bow_out();
    void part();
    void say(wire::Type type, std::span<const std::byte> payload);
    void greet();
    bool ahead_of_hello(wire::Type type) const;
    bool take_frame(const wire::Header& header, std::span<const std::byte> payload);
    bool take_all_here();
    bool take_verdict(std::span<const std::byte> payload);
    bool take_on();
    bool take_proposal(std::span<const std::byte> payload);
    bool take_decision(std::span<const std::byte> payload);
    bool take_meeting(std::span<const std::byte> payload);
    bool take_resumed(std::span<const std::byte> payload);
    void report(std::span<const std::byte> payload);
    void answer(std::uint64_t serial, bool yes);
    Wishes take_wishes(Clock::time_point now);
    void check_deadlines(Clock::time_point now);
    void leave();
    void serve_children();
    void off(const std::string& why, bool ended = false);
    void defer(const std::string& why, Clock::time_point now);
    bool promised();
    bool away() const;
    void decide(bool commit);
    void lost(const std::string& how, bool leader_may_be_well = false);
};

}  // namespace deft::agreement
