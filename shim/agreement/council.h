// SPDX-License-Identifier: Apache-2.0
// What the ranks of one communicator agree on, without NCCL: whether all of them run deft with the
// same settings, and from which call on a plan is in force.
//
// One background thread per process ("deft-agree") does all the network work and makes all the
// callbacks. It is started by the first join() and takes no signals. docs/agreement.md describes
// the wire and what happens when; README.md the rules.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "deft/abi/nccl.h"

namespace deft::agreement {

using Clock = std::chrono::steady_clock;

// Pending until the leader has decided. On is final. Off is final too, but where a rank did not
// answer: the leader asks again (Terms), and On may follow.
enum class Verdict : std::uint8_t { Pending, On, Off };

// A member's answer to a proposal. Later: Council::answer() follows, from any thread.
enum class Answer : std::uint8_t { No, Yes, Later };

// What wait_decision() found. Lost: it cannot be known here whether the others go by the proposal.
enum class Decision : std::uint8_t { Commit, Cancel, Lost };

// What a rank brings along.
struct Terms {
    int nccl_version = 0;
    // Everything that must be equal on all ranks, as words separated by spaces:
    // "DEFT_MODE=deft DEFT_MAX_DELAY=1". At most kMaxSettings bytes.
    std::string settings;
    // How long the leader waits for the others once its communicator is created().
    std::chrono::nanoseconds timeout = std::chrono::seconds(30);
    // If a rank has not answered by then, all are asked again after each of these, or as soon as
    // the rank has come.
    std::vector<std::chrono::nanoseconds> again = {std::chrono::minutes(1), std::chrono::minutes(2),
                                                   std::chrono::minutes(4)};
};

inline constexpr std::size_t kMaxSettings = 1024;
inline constexpr std::size_t kMaxBody = std::size_t{4} << 20;  // of a proposal or a report

struct Proposal {
    std::uint64_t serial = 0;       // greater than those of all earlier proposals
    std::uint64_t switch_call = 0;  // the first call the plan is in force for
    std::vector<std::byte> body;
    // How long the leader waits for all answers before it cancels. Not sent.
    std::chrono::nanoseconds patience = std::chrono::seconds(10);
};

// Who acts on what the council says. Every call is made on the agreement thread, one at a time for
// a council; a callback may call the council, but has to be short: other councils wait for it.
class Member {
public:
    // Must say No if this rank has already reached switch_call. After Yes (or Later) this rank must
    // not pass switch_call before the decision is known: decided(), else wait_decision().
    virtual Answer prepare(const Proposal& proposal) noexcept = 0;
    // The leader's decision on a proposal that prepare() was asked about.
    virtual void decided(std::uint64_t serial, bool commit) noexcept = 0;
    // A member's report, on the leader only; the leader's own come too.
    virtual void heard(int /*rank*/, std::span<const std::byte> /*report*/) noexcept {}
    // On or Off; also for a member that is attached after it. On may follow Off.
    virtual void verdict(Verdict /*verdict*/) noexcept {}
    // Once, after On: a rank has left or was lost, so there will be no more proposals. What is in
    // force stays in force.
    virtual void closed(const char* /*why*/) noexcept {}

protected:
    ~Member() = default;
};

// Of one communicator on one rank. Its references are counted (CouncilRef): whoever may call it
// while others let it go has one of its own. The agreement thread has one until the rank has left,
// so a council that nobody leaves stays.
class Council {
public:
    Council(const Council&) = delete;

    // One reference more, or fewer: CouncilRef's. Any thread.
    void hold() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept;
    // Councils that are not freed yet, of the process. Any thread.
    static std::size_t alive() noexcept;

    // One load; any thread.
    Verdict verdict() const noexcept { return verdict_.load(std::memory_order_acquire); }
    // On, and nobody has left. One load; any thread.
    bool open() const noexcept { return open_.load(std::memory_order_acquire); }
    // The leader is the first rank to join in the process that made the unique id.
    bool is_leader() const noexcept { return leader_; }
    int rank() const noexcept { return rank_; }
    int nranks() const noexcept { return nranks_; }
    // Why the verdict is Off, or why the council has closed; "" if neither. Any thread; locks.
    std::string reason() const;

    // The communicator has been created, which takes until the last rank has come: the timeout
    // counts from here. Any thread; never blocks.
    void created() noexcept;

    // At most one member at a time. attach() makes no callback itself. detach() returns when no
    // callback runs and none will follow, so do not call it while holding a lock that a callback
    // takes; in a callback it returns at once. Any thread.
    void attach(Member* member) noexcept;
    void detach(Member* member) noexcept;

    // Sends a report to the leader, in order. False if the council is not open or too much is
    // waiting. Any thread; copies, never blocks on the network.
    bool report(std::span<const std::byte> report) noexcept;

    // Leader only, one at a time: asks all ranks, this one too. False if the council is not open, a
    // proposal is under way, or the body is too long. The outcome comes through decided(). Any
    // thread.
    bool propose(Proposal proposal) noexcept;

    // The answer promised by Answer::Later. Any thread.
    void answer(std::uint64_t serial, bool yes) noexcept;

    // Waits until the decision on the proposal is known and decided() has returned. Lost if the
    // leader is gone, this rank has left, or the deadline has passed; then this rank is out of the
    // council, for good: a decision that comes later is not delivered. The deadline has to be well
    // beyond the proposal's patience. Where the leader itself waits, it gives the answers that are
    // missing half a second more at most. Any thread but the agreement thread.
    Decision wait_decision(std::uint64_t serial, Clock::time_point deadline) noexcept;

    // Waits for the verdict; Pending if the deadline has passed. Any thread but the agreement one.
    Verdict wait_verdict(Clock::time_point deadline) noexcept;

    // The communicator is being destroyed or aborted, or could not be made. The others are told;
    // whoever is in wait_decision() gets Lost. Idempotent; any thread; does not wait.
    void leave() noexcept;

    // Whoever is in wait_decision(), or comes there later, gets Lost at once; this rank stays in
    // the council, and decisions are told as before. Idempotent; any thread; does not wait.
    void let_go() noexcept;

    struct Core;  // the inside

private:
    friend struct Core;
    friend class Service;
    Council(int rank, int nranks, bool leader);
    ~Council();

    std::atomic<std::uint32_t> references_{1};  // of whoever makes it
    std::atomic<Verdict> verdict_{Verdict::Pending};
    std::atomic<bool> open_{false};
    const int rank_;
    const int nranks_;
    const bool leader_;
    std::unique_ptr<Core> core_;
};

// A reference to a council, or to none.
class CouncilRef {
public:
    CouncilRef() = default;
    // One more.
    explicit CouncilRef(Council* council) noexcept : council_(council) {
        if (council_ != nullptr) {
            council_->hold();
        }
    }
    // The one that the caller has.
    static CouncilRef adopt(Council* council) noexcept {
        CouncilRef adopted;
        adopted.council_ = council;
        return adopted;
    }
    CouncilRef(const CouncilRef& other) noexcept : CouncilRef(other.council_) {}
    CouncilRef(CouncilRef&& other) noexcept : council_(other.release()) {}
    CouncilRef& operator=(CouncilRef other) noexcept {
        std::swap(council_, other.council_);
        return *this;
    }
    ~CouncilRef() {
        if (council_ != nullptr) {
            council_->release();
        }
    }
    // The caller has it from here on.
    Council* release() noexcept { return std::exchange(council_, nullptr); }
    Council* get() const { return council_; }
    Council* operator->() const { return council_; }
    Council& operator*() const { return *council_; }
    explicit operator bool() const { return council_ != nullptr; }

private:
    Council* council_ = nullptr;
};

// What the process that makes a unique id says of its host: whether NCCL's IB carries the job
// there. Unknown: it cannot choose. The values travel.
enum class Maker : std::uint16_t { Unknown = 0, NotOnIb = 1, OnIb = 2 };

// Puts the address of this process's rendezvous and a secret into the unused bytes 64..127 of a
// unique id that NCCL has just made, and so makes this process the leader of its communicator.
// False, and the id untouched, if those bytes are in use or there is no address to listen on; `why`
// says it. Starts no thread.
bool write_trailer(deft_nccl_unique_id_t& id, std::string& why,
                   Maker maker = Maker::Unknown) noexcept;

// What the maker of the id has said; Unknown where it has no trailer.
Maker maker_of(const deft_nccl_unique_id_t& id) noexcept;

// True if the id carries a trailer that this release can read. `why`, if given, says why not.
bool has_trailer(const deft_nccl_unique_id_t& id, std::string* why = nullptr) noexcept;

// Begins the agreement of this rank's communicator. Null if the id has no trailer (has_trailer()
// says why) or the thread cannot be started (a WARN says so); then every rank will forward. Never
// waits for others.
CouncilRef join(const deft_nccl_unique_id_t& id, int nranks, int rank, const Terms& terms) noexcept;

// The agreement of a child of a communicator (split, shrink), which has no unique id: its ranks
// find each other through the parent's leader. `child` is a number that is equal on all its ranks
// and on no other child of that parent; nranks and rank are those in the child, whose rank 0 leads.
// To be called when the child has been created. Null if the thread has stopped. If the parent's
// ranks do not agree, or its leader is gone, the verdict is Off.
CouncilRef inherit(Council& parent, std::uint64_t child, int nranks, int rank,
                   const Terms& terms) noexcept;

}  // namespace deft::agreement
