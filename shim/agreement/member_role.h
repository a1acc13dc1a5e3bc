// SPDX-License-Identifier: Apache-2.0
// The part of every rank but the leader's: finds the leader, says hello, answers, reports.
#pragma once

#include "shim/agreement/core.h"

namespace deft::agreement {

class MemberRole final : public Role {
public:
    MemberRole(Council::Core& core, const wire::Trailer& trailer);
    // Of a child: the trailer is still to be found.
    explicit MemberRole(Council::Core& core) : core_(core), state_(State::Lost) {}

    void step(Clock::time_point now) override;
    void gather(PollSet& set) override;
    void ready(const PollSet& set, Clock::time_point now) override;
    Clock::time_point due() const override;
    bool finished() const override {
        return state_ == State::Left && !stream_.open() && asking_.empty();
    }
    void found(const wire::Trailer* trailer, const std::string& why) override;

private:
    enum class State : std::uint8_t {
        Lost,        // a child's: does not know where to go
        Waiting,     // until the next attempt
        Connecting,  // the kernel is at it
        Greeted,     // hello sent
        Acked,       // everybody is there; the verdict is to come
        Open,
        Done,  // Off, or closed
        Left
    };

    // What this rank's other threads have asked for since the last step.
    struct Wishes {
        bool leave = false;
        std::vector<std::pair<std::uint64_t, bool>> answers;
        std::deque<std::vector<std::byte>> reports;
    };

    Council::Core& core_;
    wire::Trailer trailer_;
    State state_ = State::Waiting;
    Stream stream_;
    std::size_t endpoint_ = 0;                  // of the attempt in progress, or the next
    Clock::time_point attempt_until_ = kNever;  // Waiting: begin then; Connecting: give up then
    Clock::time_point deadline_ = kNever;
    Clock::time_point linger_ = kNever;               // Left: close then
    std::string problem_;                             // of the last attempt
    std::uint64_t serial_ = 0;                        // of the proposal in hand, or 0
    std::uint64_t digest_ = 0;                        // of what this rank has of it
    std::vector<wire::Meeting> posts_;                // not sent yet
    std::vector<Council::Core::Question> questions_;  // not sent yet
    std::vector<Council::Core::Question> asking_;     // sent

    std::string leader() const;
    void connect(Clock::time_point now);
    void greet(Clock::time_point now);
    void try_next(Clock::time_point now, const std::string& problem);
    void take_all(bool alive, Clock::time_point now);
    bool take(const wire::Header& header, std::span<const std::byte> payload);
    bool take_verdict(std::span<const std::byte> payload);
    bool take_proposal(std::span<const std::byte> payload);
    bool take_decision(std::span<const std::byte> payload);
    bool take_meeting(std::span<const std::byte> payload);
    void answer(std::uint64_t serial, bool yes);
    Wishes take_wishes(Clock::time_point now);
    void leave(Clock::time_point now);
    void serve_children();
    void off(const std::string& why, bool ended = false);
    void lost(const std::string& how, Clock::time_point now);
};

}  // namespace deft::agreement
