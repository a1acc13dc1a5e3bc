// SPDX-License-Identifier: Apache-2.0
// The leader's part: gathers the others, decides, proposes.
#pragma once

#include <deque>
#include <list>
#include <map>

#include "shim/agreement/core.h"
#include "shim/agreement/link.h"

namespace deft::agreement {

class LeaderRole final : public Role {
public:
    // council: what frames of this communicator are marked with.
    LeaderRole(Council::Core& core, std::uint64_t council);

    // A rank that has named this council's secret, or comes back. own: the link is to the rank's
    // process, and not to one that relays for it. False: nonsense, and the rank is turned out.
    bool adopt(Link& link, const wire::Hello& hello, bool own);
    // A frame of a rank has come over the link. False: it was nonsense, and the rank is turned out.
    bool take(Link& link, const wire::Header& header, std::span<const std::byte> payload);
    // The link has ended, and whoever was behind it is not to be reached. moved: its process was
    // told to come another way.
    void link_ended(Link& link, const std::string& how, bool moved);
    // A rank of this council is behind the link.
    bool uses(Link& link) const { return branches_.count(&link) != 0; }
    bool uses(Link& link, std::uint32_t rank) const {
        return rank < voters_.size() && voters_[rank].link == &link;
    }

    void step(Clock::time_point now) override;
    Clock::time_point due() const override;
    void overslept(Clock::duration slept) override;
    bool finished() const override { return state_ == State::Left; }

private:
    // Gathering -> Asking -> Open -> Closed -> Left; Deferred or Off from the first two.
    enum class State : std::uint8_t {
        Gathering,  // waits for the hellos
        Asking,     // all are here and agree; waits for their acknowledgements
        Deferred,   // Off for now: somebody is missing, and is waited for
        Open,       // On
        Closed,     // was open; somebody is gone
        Off,
        Left
    };
    enum class Vote : std::uint8_t { None, Yes, No };
    struct Voter {
        Link* link = nullptr;
        bool own = true;  // the link is the rank's, and not a relay's
        bool here = false;
        bool acked = false;
        Vote vote = Vote::None;
        std::uint64_t process = 0;
        std::uint64_t heard = 0;  // reports
        std::string host;
        Clock::time_point absent_until = kNever;  // its connection broke; it comes back until then
    };

    // What this rank's other threads have asked for since the last step.
    struct Wishes {
        bool leave = false;
        std::optional<Proposal> proposal;
        std::vector<std::pair<std::uint64_t, bool>> answers;
        std::list<std::vector<std::byte>> reports;
        std::vector<wire::Meeting> posts;
        std::vector<Council::Core::Question> questions;
    };

    Council::Core& core_;
    const std::uint64_t council_;
    State state_ = State::Gathering;
    std::vector<Voter> voters_;
    std::size_t here_ = 0;   // how many of them are
    std::size_t acked_ = 0;  // how many of them have
    std::size_t yes_ = 0;    // how many of them said it
    // Links, and the ranks behind each.
    std::map<Link*, std::vector<std::size_t>> branches_;
    std::vector<std::size_t> absent_;
    Clock::time_point deadline_ = kNever;  // Gathering, Asking; Deferred: asks again then
    std::size_t asked_again_ = 0;          // how often
    std::string off_reason_;
    bool off_by_end_ = false;  // nothing is amiss: a rank has ended its communicator
    // The proposal in hand.
    bool voting_ = false;
    Proposal proposal_;
    std::uint64_t digest_ = 0;  // of it
    wire::Frame prepare_;       // it, as it is sent
    Clock::time_point patience_ = kNever;
    std::deque<wire::Word> decisions_;  // the last ones
    // Where the communicator's children meet, and who has asked too early.
    struct Asking {
        std::uint64_t child;
        std::size_t rank;
        CouncilRef council;  // of this rank; none: another one
    };
    std::map<std::uint64_t, wire::Meeting> board_;
    std::deque<std::uint64_t> posted_;  // in order
    std::vector<Asking> asking_;

    std::size_t own() const { return static_cast<std::size_t>(core_.council->rank()); }
    bool pending() const { return state_ == State::Gathering || state_ == State::Asking; }
    std::string name_of(std::size_t rank) const;
    std::string missing(bool acks) const;
    void tell(std::size_t rank, wire::Type type, std::span<const std::byte> payload);
    void tell_all(wire::Type type, std::span<const std::byte> payload);
    void tell_all(const wire::Frame& frame);
    void send_off(Link& link, std::uint32_t rank, const std::string& why, bool ended = false);
    void decide_off(const std::string& why, bool ended = false);
    void defer(const std::string& why, Clock::time_point now);
    void ask_again(Clock::time_point now);
    Wishes take_wishes(Clock::time_point now);
    void check_deadline(Clock::time_point now);
    void serve_children(const Wishes& wishes);
    void check_gathered();
    void begin_asking();
    void check_acked();
    bool fits(Link& link, const wire::Hello& hello);
    void settle(std::size_t rank, Link& link, bool own);
    void unsettle(std::size_t rank);
    bool turn_out(std::size_t rank);
    void come_back(std::size_t rank, std::uint64_t serial);
    void miss(std::size_t rank, Clock::time_point now);
    void check_absent(Clock::time_point now);
    void lost(std::size_t rank, const std::string& how, bool ended = false);
    bool take_of_member(std::size_t rank, wire::Type type, std::span<const std::byte> payload);
    bool take_of_children(std::size_t rank, wire::Type type, std::span<const std::byte> payload);
    void begin_vote(Proposal&& proposal, Clock::time_point now);
    void hear_answer(std::size_t rank, const wire::Word& word);
    void vote(std::size_t rank, bool yes);
    void decide(bool commit);
    void leave();
    void post(const wire::Meeting& meeting);
    void ask(const Asking& asking);
    void tell(const Asking& asking, const wire::Meeting& meeting);
};

}  // namespace deft::agreement
