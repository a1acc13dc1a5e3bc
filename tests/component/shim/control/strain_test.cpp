// SPDX-License-Identifier: Apache-2.0
// Guard and lease of 2,000 ranks under strain: the plan ends at one call on every rank. Real are
// the leader's council with its sockets and votes (a process of its own), the guard, what ranks
// report to it, and each rank's lease. The other ranks' side of the council is simulated, and NCCL:
// it delivers the smallest word to all.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/build_version.h"
#include "perf/agreement/members.h"
#include "shim/agreement/core.h"
#include "shim/agreement/council.h"
#include "shim/executor/lease.h"
#include "shim/guard/guard.h"

namespace deft::director {
namespace {

using namespace std::chrono_literals;
using agreement::Clock;
using agreement_scale::Members;
using executor::Ballot;
using executor::Lease;
using executor::Statistics;
namespace wire = agreement::wire;

constexpr int kRanks = 2000;
constexpr int kRanksPerHost = 8;
constexpr int kReports = 63;  // an iteration: of ranks 0, 32, 64 ...
static_assert(guard::reports(1984, kRanks) && !guard::reports(1, kRanks) &&
              guard::reports(32, kRanks) && 1984 / 32 + 1 == kReports);
constexpr auto kPatience = 30s;        // only a failing test waits for it
constexpr std::uint64_t kForward = 1;  // serial of the proposal that ends the plan
constexpr std::uint64_t kBegins = 40;  // iteration in which the strain does
constexpr std::uint64_t kMost = 2'000;
// A leader does not vouch any more where its guard's switch has not come in so many iterations.
constexpr std::uint64_t kFallIterations = 32;
constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();

agreement::Terms terms() {
    agreement::Terms made;
    made.nccl_version = 22809;
    made.settings = "DEFT_MODE=deft";
    made.timeout = kPatience;
    made.again = {};
    return made;
}

Statistics statistics_of(std::uint64_t iteration, double norm) {
    Statistics statistics;
    statistics.iteration = iteration;
    statistics.complete = true;
    statistics.bytes = 1000;
    statistics.local_square = norm * norm * 1000 / kRanks;
    statistics.reduced_square = norm * norm * 1000;
    return statistics;
}

planner::Plan late_plan() {
    planner::Plan plan;
    planner::Delivery delivery;
    delivery.iteration = 1;  // of the gradients of iteration 0
    plan.deliveries.push_back(delivery);
    return plan;
}

// ---- the leader's process

// What the leader's rank does in an iteration, and what it says of it.
struct Asked {
    std::uint64_t iteration = 0;
    double norm = 1;
    int reports = 0;  // that it waits for, with its own
};
struct Said {
    bool vouches = false;
    bool knows = false;  // that the plan is to end
    bool fallen = false;
};

class Leading final : public agreement::Member {
public:
    agreement::Answer prepare(const agreement::Proposal&) noexcept override {
        return agreement::Answer::Yes;
    }
    void decided(std::uint64_t, bool commit) noexcept override {
        const std::lock_guard lock(mutex_);
        knows_ = knows_ || commit;
    }
    void heard(int rank, std::span<const std::byte> report) noexcept override {
        const std::lock_guard lock(mutex_);
        Statistics statistics;
        if (guard::decode(report, statistics)) {
            reports_.emplace_back(rank, statistics);
        }
    }
    std::size_t waiting() {
        const std::lock_guard lock(mutex_);
        return reports_.size();
    }
    std::vector<std::pair<int, Statistics>> take() {
        const std::lock_guard lock(mutex_);
        return std::exchange(reports_, {});
    }
    bool knows() {
        const std::lock_guard lock(mutex_);
        return knows_;
    }

private:
    std::mutex mutex_;
    std::vector<std::pair<int, Statistics>> reports_;
    bool knows_ = false;
};

class Leader {
public:
    explicit Leader(agreement::Council& council) : council_(council) {
        council_.attach(&member_);
        guard_.plan_in_force(late_plan(), 0);
    }
    Said iterate(const Asked& asked) {
        council_.report(guard::encode(statistics_of(asked.iteration, asked.norm)));
        const auto until = Clock::now() + kPatience;
        while (council_.open() && member_.waiting() < static_cast<std::size_t>(asked.reports) &&
               Clock::now() < until) {
            std::this_thread::sleep_for(100us);
        }
        for (const auto& [rank, statistics] : member_.take()) {
            guard_.report(rank, statistics);
        }
        const guard::Decision decision = guard_.decide(asked.iteration);
        proposes_ = proposes_ || (decision.act && decision.action == guard::Action::FallBack);
        if (proposes_) {
            agreement::Proposal proposal;
            proposal.serial = kForward;
            proposal.switch_call = std::numeric_limits<std::uint64_t>::max();
            proposes_ = !council_.propose(std::move(proposal)) && council_.open();
        }
        return {council_.open() && guard_.fallen_for(asked.iteration) <= kFallIterations,
                member_.knows(), guard_.fallen()};
    }

private:
    agreement::Council& council_;
    Leading member_;
    guard::Guard guard_{{}, kRanks};
    bool proposes_ = false;
};

[[noreturn]] void lead(int asked, int said) {
    agreement::pace().back = 1s;
    std::string why;
    deft_nccl_unique_id_t id{};
    if (!agreement::write_trailer(id, why) ||
        ::write(said, id.internal + wire::kTrailerAt, wire::kTrailerBytes) !=
            static_cast<ssize_t>(wire::kTrailerBytes)) {
        ::_exit(1);
    }
    const agreement::CouncilRef council = agreement::join(id, kRanks, 0, terms());
    council->created();
    if (council->wait_verdict(Clock::now() + kPatience) != agreement::Verdict::On) {
        ::_exit(1);
    }
    Leader leader(*council);
    Asked next;
    while (::read(asked, &next, sizeof next) == sizeof next) {
        const Said one = leader.iterate(next);
        if (::write(said, &one, sizeof one) != sizeof one) {
            break;
        }
    }
    ::_exit(0);
}

// ---- the others

struct End {
    std::uint64_t iteration = 0;
    Ballot::Word word = Ballot::Word::Yes;
};

class Job {
public:
    Job() {
        int asked[2];
        int said[2];
        EXPECT_EQ(::pipe(asked), 0);
        EXPECT_EQ(::pipe(said), 0);
        leader_ = ::fork();
        if (leader_ == 0) {
            ::close(asked[1]);
            ::close(said[0]);
            lead(asked[0], said[1]);
        }
        ::close(asked[0]);
        ::close(said[1]);
        asked_ = UniqueFd(asked[1]);
        said_ = UniqueFd(said[0]);
        std::array<std::byte, wire::kTrailerBytes> bytes{};
        wire::Trailer trailer;
        EXPECT_EQ(::read(said_.get(), bytes.data(), bytes.size()),
                  static_cast<ssize_t>(bytes.size()));
        EXPECT_EQ(wire::decode(bytes, trailer), wire::Decoded::Ok);
        wire::Hello hello;
        hello.nonce = trailer.nonce;
        hello.nranks = kRanks;
        hello.nccl_version = terms().nccl_version;
        hello.deft_version = build_version();
        hello.process = 1;
        hello.host = "simulated";
        hello.settings = terms().settings;
        members_ = std::make_unique<Members>(
            agreement_scale::Shape{kRanks, kRanksPerHost, guard::kReportBytes, kReports - 1},
            trailer, hello);
        while (members_->connect_some()) {
            members_->turn(0);
        }
        EXPECT_TRUE(until([&] { return members_->verdicts() == kRanks - 1; }));
        for (int rank = 0; rank < kRanks; ++rank) {
            leases_.push_back(std::make_unique<Lease>(1, true));
        }
    }
    ~Job() {
        kill_leader();
        ::waitpid(leader_, nullptr, 0);
    }
    Job(const Job&) = delete;

    Members& members() { return *members_; }
    void kill_leader() {
        if (alive_) {
            ::kill(leader_, SIGKILL);
        }
        alive_ = false;
    }
    template <class Predicate>
    bool until(Predicate&& predicate) {
        const auto deadline = Clock::now() + kPatience;
        while (!predicate() && Clock::now() < deadline) {
            members_->turn(1);
        }
        return predicate();
    }
    // Every rank knows what the leader has decided.
    bool all_know() {
        for (std::uint32_t rank = 1; rank < kRanks; ++rank) {
            if (!members_->committed(rank, kForward)) {
                return false;
            }
        }
        return true;
    }

    // One iteration of all ranks. `reports`: that the leader waits for.
    void iterate(std::uint64_t t, double norm, int reports) {
        hear(t);
        members_->report(guard::encode(statistics_of(t, norm)));
        const Asked asked{t, norm, reports};
        if (alive_) {
            ASSERT_EQ(::write(asked_.get(), &asked, sizeof asked),
                      static_cast<ssize_t>(sizeof asked));
            ASSERT_TRUE(until([this] {
                pollfd answered{said_.get(), POLLIN, 0};
                return ::poll(&answered, 1, 0) > 0;
            }));
            ASSERT_EQ(::read(said_.get(), &said, sizeof said), static_cast<ssize_t>(sizeof said));
        } else {
            said.vouches = false;
            members_->turn(1);
        }
        ask(t);
    }

    Said said;
    std::vector<End> ends = std::vector<End>(kRanks);
    std::uint64_t unvouched = 0;  // the first iteration in which a rank has said so

private:
    // As Executor::renew() does. NCCL's answer is the same on all ranks.
    void hear(std::uint64_t t) {
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
            if (ends[rank].iteration == 0 && leases_[rank]->hears(t) &&
                smallest_ != Ballot::Word::Yes) {
                ends[rank] = {t, smallest_};
            }
        }
    }
    void ask(std::uint64_t t) {
        auto smallest = Ballot::Word::Switch;
        for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
            Lease& lease = *leases_[rank];
            const bool vouches = rank == 0 ? said.vouches : !members_->closed(rank);
            const bool knows = rank == 0 ? said.knows : members_->committed(rank, kForward);
            lease.vouch(vouches ? kForEver : 0);
            if (!vouches && unvouched == 0) {
                unvouched = t;
            }
            if (lease.asks(t)) {
                smallest = std::min(smallest, lease.word(t, knows));
                smallest_ = rank + 1 == kRanks ? smallest : smallest_;
            }
        }
    }

    pid_t leader_ = -1;
    bool alive_ = true;
    UniqueFd asked_;
    UniqueFd said_;
    std::unique_ptr<Members> members_;
    std::vector<std::unique_ptr<Lease>> leases_;
    Ballot::Word smallest_ = Ballot::Word::Yes;
};

void expect_one_end(const Job& job, Ballot::Word word) {
    const End& first = job.ends.front();
    EXPECT_GT(first.iteration, kBegins);
    EXPECT_EQ(first.word, word);
    EXPECT_TRUE(std::all_of(job.ends.begin(), job.ends.end(), [&](const End& end) {
        return end.iteration == first.iteration && end.word == word;
    })) << "ranks have parted";
}

// As long as nothing is amiss the plan goes on; then iterations follow until it ends.
template <class Each>
void run(Job& job, int reports, Each&& each) {
    for (std::uint64_t t = 0; t < kMost && job.ends.front().iteration == 0; ++t) {
        ASSERT_NO_FATAL_FAILURE(job.iterate(t, each(t), reports));
    }
}

double exploding(std::uint64_t t) {
    return t < kBegins ? 1 : 100;
}

// What the guard sees is agreed by all 2,000, and they end the plan where they hear each other
// next. A rank that does not report to it voids nothing.
TEST(Strain, ANormThatExplodesEndsThePlanOnAllRanks) {
    Job job;
    std::uint64_t known = 0;
    run(job, kReports, [&](std::uint64_t t) {
        if (t > 0 && job.said.fallen && known == 0) {
            EXPECT_LE(t, kBegins + 3) << "two norms in a row";
            EXPECT_TRUE(job.until([&] { return job.all_know(); }));  // a vote takes an iteration
            known = t;
        }
        return exploding(t);
    });
    expect_one_end(job, Ballot::Word::Switch);
    EXPECT_GT(known, kBegins);
    EXPECT_LE(job.ends.front().iteration, known + 9);
}

// It neither reports nor votes, so the guard's switch is never agreed on; its NCCL goes on. Then
// the leader does not vouch any more.
TEST(Strain, ARankThatSaysNothingKeepsNoPlanInForce) {
    Job job;
    job.members().silence(1952);  // one of those that report
    run(job, kReports - 1, exploding);
    expect_one_end(job, Ballot::Word::No);
    EXPECT_TRUE(job.said.fallen);
    EXPECT_FALSE(job.said.knows);
    EXPECT_LE(job.ends.front().iteration, kBegins + 3 + kFallIterations + 9);
}

// Its rank's NCCL goes on for the moment.
TEST(Strain, ALeaderThatDiesEndsThePlanOnAllRanks) {
    Job job;
    run(job, kReports, [&](std::uint64_t t) {
        if (t == kBegins) {
            job.kill_leader();
        }
        return 1;
    });
    expect_one_end(job, Ballot::Word::No);
    EXPECT_LE(job.ends.front().iteration, kBegins + 9);
}

// Half of the hosts can't reach the leader, and do not know: they go on to vouch. The leader waits
// for them to come back (here for a second), then tells the others.
TEST(Strain, AManagementNetworkThatIsCutEndsThePlanOnAllRanks) {
    Job job;
    int reports = kReports;
    for (std::uint64_t t = 0; t < kMost && job.ends.front().iteration == 0; ++t) {
        if (t == kBegins) {
            job.members().cut_from(kRanks / 2);
            reports = 1;
        }
        ASSERT_NO_FATAL_FAILURE(job.iterate(t, 1, reports));
        std::this_thread::sleep_for(t < kBegins ? 0ms : 5ms);
    }
    expect_one_end(job, Ballot::Word::No);
    EXPECT_GT(job.unvouched, kBegins);
    EXPECT_LE(job.ends.front().iteration, job.unvouched + 9);
    EXPECT_TRUE(job.until([&job] { return job.members().closed(1); })) << "the others are told";
    EXPECT_FALSE(job.members().closed(kRanks - 1));
}

}  // namespace
}  // namespace deft::director
