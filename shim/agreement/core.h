// SPDX-License-Identifier: Apache-2.0
// The inside of a Council: what its threads share, and how the agreement thread talks to the
// member.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/monitor.h"
#include "base/mutex.h"
#include "shim/agreement/council.h"
#include "shim/agreement/wire.h"

namespace deft::agreement {

inline constexpr Clock::time_point kNever = Clock::time_point::max();

// How long the others may be silent. What a thread has slept through itself is nobody's silence.
struct Pace {
    Clock::duration beat = std::chrono::seconds(1);
    // A relay that says nothing for so long is left.
    Clock::duration silence = std::chrono::seconds(5);
    // A rank whose connection has broken has so long to come back.
    Clock::duration back = std::chrono::seconds(10);
};
// Of this process. Changed by tests only, before anything is joined.
Pace& pace();

// A deadline, moved on by what was slept through.
inline void put_off(Clock::time_point& when, Clock::duration slept) {
    if (when != kNever) {
        when += slept;
    }
}

// One rank's part in the council: LeaderRole (the leader's) or MemberRole (everybody else's). Lives
// on the agreement thread.
class Role {
public:
    virtual ~Role() = default;
    // Does what other threads have asked for, and what is due.
    virtual void step(Clock::time_point now) = 0;
    // When step() is due even if nothing happens.
    virtual Clock::time_point due() const = 0;
    // The thread did not run for so long, so that much of the others' silence does not count.
    virtual void overslept(Clock::duration slept) = 0;
    // Left.
    virtual bool finished() const = 0;
    // Of a child: where its ranks meet; null: nobody will say, and why.
    virtual void found(const wire::Trailer* /*trailer*/, const std::string& /*why*/) {}
};

struct Council::Core {
    // Where the proposal in hand stands on this rank.
    enum class Phase : std::uint8_t {
        None,      // nothing was ever asked
        Asked,     // prepare() was called; whatever it says, the leader's decision is awaited
        Deciding,  // decided() is running
        Committed,
        Cancelled,
        Lost
    };

    Council* council = nullptr;
    Terms terms;
    std::unique_ptr<Role> role;  // the agreement thread's

    // ---- shared between threads
    mutable Monitor monitor;
    std::string reason DEFT_GUARDED_BY(monitor);
    bool off_for_now DEFT_GUARDED_BY(monitor) = false;  // Off, and another verdict may follow
    Phase phase DEFT_GUARDED_BY(monitor) = Phase::None;
    std::uint64_t serial DEFT_GUARDED_BY(monitor) = 0;
    // The last decisions, by serial: whoever waits for one may come to look when the next proposal
    // is in hand.
    struct Decided {
        std::uint64_t serial = 0;
        Decision found = Decision::Lost;
    };
    std::array<Decided, 16> past DEFT_GUARDED_BY(monitor){};
    bool created DEFT_GUARDED_BY(monitor) = false;
    bool left DEFT_GUARDED_BY(monitor) = false;
    // A waiter has given up: out of the council.
    bool abandoned DEFT_GUARDED_BY(monitor) = false;
    bool let_go DEFT_GUARDED_BY(monitor) = false;  // nobody waits for a decision any more
    // Leader: its own call waits for the vote in hand, which is cancelled then.
    Clock::time_point overdue DEFT_GUARDED_BY(monitor) = kNever;
    // A list: empty it takes no memory.
    std::list<std::vector<std::byte>> reports DEFT_GUARDED_BY(monitor);
    std::size_t report_bytes DEFT_GUARDED_BY(monitor) = 0;
    std::optional<Proposal> proposal DEFT_GUARDED_BY(monitor);
    bool proposing DEFT_GUARDED_BY(monitor) = false;
    std::vector<std::pair<std::uint64_t, bool>> answers DEFT_GUARDED_BY(monitor);
    // Of children that this rank leads.
    std::vector<wire::Meeting> posts DEFT_GUARDED_BY(monitor);
    struct Question {
        std::uint64_t child;
        CouncilRef council;
    };
    // Of children that it does not lead.
    std::vector<Question> questions DEFT_GUARDED_BY(monitor);

    // ---- the member; recursive, so that a callback may attach and detach
    RecursiveMutex calling;
    Member* member DEFT_GUARDED_BY(calling) = nullptr;
    bool verdict_told DEFT_GUARDED_BY(calling) = false;
    bool closed_told DEFT_GUARDED_BY(calling) = false;
    // Came while nobody was attached.
    std::list<std::pair<int, std::vector<std::byte>>> unheard DEFT_GUARDED_BY(calling);

    // ---- called on the agreement thread
    struct Off {
        bool ended = false;  // a rank has ended the communicator before it was decided about
        bool again = false;  // the leader asks again: another verdict may follow
    };
    void set_verdict(Verdict verdict, const std::string& why) { set_verdict(verdict, why, {}); }
    void set_verdict(Verdict verdict, const std::string& why, const Off& off);
    static void say_off(const std::string& why, const Off& off, bool quiet);
    // After On: nobody proposes any more. What becomes of the proposal in hand: the leader may
    // still say it (sought), or nobody will ever know.
    void close(const std::string& why, bool sought = false);
    // Nobody can say any more what became of the proposal in hand.
    void give_up_decision();
    Answer ask(const Proposal& proposal);
    // Before a decision is told to anybody: false if this rank has given up waiting for it, or
    // left; then it is out and must not hear any.
    bool begin_decision(std::uint64_t serial);
    void finish_decision(std::uint64_t serial, bool commit);
    // Lost: none, or too long ago.
    Decision found(std::uint64_t serial) const DEFT_REQUIRES(monitor);
    // Of that proposal, which is in hand, and somebody still waits for it.
    bool undecided(std::uint64_t serial) const DEFT_REQUIRES(monitor);
    void hear(int rank, std::span<const std::byte> report);
    // Tells a member attached late what it has missed.
    void catch_up();
    // After the end: others may have references for longer.
    void let_memory_go() DEFT_REQUIRES(monitor);
    // Hands a child of this rank what the parent's leader has said.
    static void tell_child(Council& child, const wire::Meeting* meeting, const std::string& why);

    static CouncilRef make(int rank, int nranks, bool leader, const Terms& terms);
};

// "DEFT_MODE" differs, a rank more or less ... : why the two cannot agree, naming both; "" if they
// can. Pure.
struct Party {
    int rank = 0;
    int nranks = 0;
    int nccl_version = 0;
    std::string deft_version;  // of the build: it says which commit
    std::string host;
    std::string settings;
};
std::string difference(const Party& leader, const Party& member);

const std::string& own_host();

}  // namespace deft::agreement
