// SPDX-License-Identifier: Apache-2.0
// What the leader alone does about tuning NCCL for its communicator: it has ways tried, compares
// the best of them with NCCL's own, and has them kept where the job is faster. docs/tuner.md tells
// the whole course.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shim/control/communicator_info.h"
#include "shim/control/plan_report.h"
#include "shim/control/tuner.h"
#include "shim/tuning/judgement.h"
#include "shim/tuning/race.h"

namespace deft::director {

// Threads: the shim's background thread.
class TuningLeader {
public:
    // False: the council is busy. Else the serial of the proposal comes back.
    using Propose =
        std::function<bool(std::vector<std::byte> body, std::uint64_t call, std::uint64_t& serial)>;

    TuningLeader(const CommunicatorInfo& info, Tuner& tuner) : info_(info), tuner_(tuner) {}
    TuningLeader(const TuningLeader&) = delete;

    // The next step. iteration: so many calls of this communicator that may be tuned does one of
    // the job's make; 0: that is not known. at_rest: nothing is planned for them.
    void lead(std::uint64_t iteration, bool at_rest, const Propose& propose);
    // Times of calls mean little to others now.
    bool busy() const { return state_ != State::Watching && state_ != State::Settled; }

    TuningFacts facts() const;

private:
    // What holds for a kind of call, and its times.
    struct Kept {
        tuning::Key key;
        CollectiveChoice choice;
        double own_ms = 0;
        double chosen_ms = 0;
        CollectiveChoice own;  // what NCCL takes by itself
        bool aside = false;    // the job has stopped to make it: nothing is known
    };
    enum class State : std::uint8_t { Watching, Trying, Narrowing, Comparing, Settling, Settled };

    const char* state_name() const;
    void watch(const Propose& propose);
    void await(const Propose& propose);
    // Of the order that is under way. False: it is not over yet.
    bool take_times();
    bool judge();
    void take_verdict(std::size_t entry);
    bool narrow();
    void compare();
    bool over_time() const;
    void next(State state, tuning::Order order);
    void next_part(State state, std::uint32_t rounds);
    void cancelled();
    void put_off();
    void drop(bool (*wrong)(const Kept& kept, const CollectiveChoice& choice));
    CollectiveChoice before(std::size_t entry) const;
    double iteration_s() const;
    bool short_iteration() const;
    std::uint32_t look_rounds() const;
    std::uint64_t window_iterations() const;
    void give_up(const std::string& why);
    void settle();
    void settled();
    bool send(const Propose& propose);
    tuning::Freedom freedom() const;

    const CommunicatorInfo& info_;
    Tuner& tuner_;
    std::uint64_t iteration_ = 0;  // as of the latest step
    State state_ = State::Watching;
    tuning::Order order_;       // that is under way, or to be proposed
    std::uint64_t serial_ = 0;  // of its proposal; 0: it has yet to be made
    std::uint64_t started_at_ = 0;
    std::int64_t since_ns_ = 0;  // of the proposal's commitment, 0 before
    unsigned tries_ = 0;
    unsigned rounds_ = 0;   // of tuning, from watching to settled
    unsigned put_off_ = 0;  // rounds that the ranks did not begin
    std::int64_t rests_until_ns_ = 0;
    std::uint64_t next_look_ = 0;      // not before so many calls
    bool channels_ = true;             // no rank seems to refuse fewer of them
    std::vector<Kept> found_;          // by entry of the order
    std::vector<tuning::Race> races_;  // the same, of a trial
    std::vector<double> ratios_;       // of a comparison, all of its parts
    std::vector<Kept> kept_;           // what holds between orders
    std::int64_t proposed_ns_ = 0;
    double vote_s_ = 0;  // that the ranks have taken to agree, at most; 0: not known
    double compared_ = 1;
    double ratio_ = 1;
    std::string reason_ = "the job's calls are being learned";
};

}  // namespace deft::director
