// SPDX-License-Identifier: Apache-2.0
// The leader's part: gathers the others, decides, proposes.
#pragma once

#include <map>

#include "shim/agreement/core.h"

namespace deft::agreement {

class LeaderRole final : public Role {
public:
    explicit LeaderRole(Council::Core& core);

    // A guest that has named this council's secret.
    void adopt(Stream&& stream, const wire::Hello& hello);

    void step(Clock::time_point now) override;
    void gather(PollSet& set) override;
    void ready(const PollSet& set, Clock::time_point now) override;
    Clock::time_point due() const override;
    bool finished() const override { return state_ == State::Left && leaving_.empty(); }

private:
    // Gathering -> Asking -> Open -> Closed -> Left, or Off from the first two.
    enum class State : std::uint8_t {
        Gathering,  // waits for the hellos
        Asking,     // all are here and agree; waits for their acknowledgements
        Open,       // On
        Closed,     // was open; somebody is gone
        Off,
        Left
    };
    enum class Vote : std::uint8_t { None, Yes, No };
    struct Voter {
        Stream stream;
        bool here = false;
        bool acked = false;
        Vote vote = Vote::None;
        std::string host;
    };
    // Connections that only have a last word to take.
    struct Leaving {
        Stream stream;
        Clock::time_point until;
    };

    // What this rank's other threads have asked for since the last step.
    struct Wishes {
        bool leave = false;
        std::optional<Proposal> proposal;
        std::vector<std::pair<std::uint64_t, bool>> answers;
        std::deque<std::vector<std::byte>> reports;
        std::vector<wire::Meeting> posts;
        std::vector<Council::Core::Question> questions;
    };

    Council::Core& core_;
    State state_ = State::Gathering;
    std::vector<Voter> voters_;
    std::vector<Leaving> leaving_;
    Clock::time_point deadline_ = kNever;
    std::string off_reason_;
    bool off_by_end_ = false;  // nothing is amiss: a rank has ended its communicator
    // The proposal in hand.
    bool voting_ = false;
    Proposal proposal_;
    std::uint64_t digest_ = 0;  // of it
    Clock::time_point patience_ = kNever;
    // Where the communicator's children meet, and who has asked too early.
    struct Asking {
        std::uint64_t child;
        std::size_t rank;
        Council* council;  // of this rank; null: another one
    };
    std::map<std::uint64_t, wire::Meeting> board_;
    std::vector<Asking> asking_;

    std::size_t own() const { return static_cast<std::size_t>(core_.council->rank()); }
    std::string name_of(std::size_t rank) const;
    std::string missing(bool acks) const;
    void send_off(Stream&& stream, const std::string& why, bool ended = false);
    void decide_off(const std::string& why, bool ended = false);
    Wishes take_wishes(Clock::time_point now);
    void check_deadline(Clock::time_point now);
    void serve_children(const Wishes& wishes);
    void check_gathered();
    void check_acked();
    void lost(std::size_t rank, const std::string& how, bool ended = false);
    bool take(std::size_t rank, const wire::Header& header, std::span<const std::byte> payload);
    bool take_of_member(std::size_t rank, wire::Type type, std::span<const std::byte> payload);
    bool take_of_children(std::size_t rank, wire::Type type, std::span<const std::byte> payload);
    void begin_vote(Proposal&& proposal, Clock::time_point now);
    void hear_answer(std::size_t rank, const wire::Word& word);
    void count_votes();
    void decide(bool commit);
    void leave(Clock::time_point now);
    void post(const wire::Meeting& meeting);
    void ask(const Asking& asking);
    void tell(const Asking& asking, const wire::Meeting& meeting);
};

}  // namespace deft::agreement
