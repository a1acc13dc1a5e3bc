// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/council.h"

#include <algorithm>

#include "shim/agreement/core.h"
#include "shim/agreement/service.h"

namespace deft::agreement {
namespace {

using Phase = Council::Core::Phase;
constexpr std::size_t kMaxReports = 256;
// A vote takes milliseconds, and a cancelled plan comes again.
constexpr auto kOverdue = std::chrono::milliseconds(500);
// Of a wait: who sleeps for longer was stopped.
constexpr std::chrono::seconds kSlice{1};

std::atomic<std::size_t> alive_councils{0};

}  // namespace

Council::Council(int rank, int nranks, bool leader)
    : rank_(rank), nranks_(nranks), leader_(leader), core_(std::make_unique<Core>()) {
    core_->council = this;
    alive_councils.fetch_add(1, std::memory_order_relaxed);
}

Council::~Council() {
    alive_councils.fetch_sub(1, std::memory_order_relaxed);
}

void Council::release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        delete this;
    }
}

std::size_t Council::alive() noexcept {
    return alive_councils.load(std::memory_order_relaxed);
}

std::string Council::reason() const {
    const Monitor::Lock lock(core_->monitor);
    return core_->reason;
}

void Council::created() noexcept {
    {
        const Monitor::Lock lock(core_->monitor);
        core_->created = true;
    }
    Service::process().wake();
}

void Council::attach(Member* member) noexcept {
    {
        const MutexLock calls(core_->calling);
        core_->member = member;
        core_->verdict_told = false;
        core_->closed_told = false;
    }
    Service::process().wake();
}

void Council::detach(Member* member) noexcept {
    const MutexLock calls(core_->calling);
    if (core_->member == member) {
        core_->member = nullptr;
    }
}

bool Council::report(std::span<const std::byte> report) noexcept {
    if (!open() || report.size() > kMaxBody) {
        return false;
    }
    try {
        std::vector<std::byte> copy(report.begin(), report.end());
        const Monitor::Lock lock(core_->monitor);
        if (core_->reports.size() == kMaxReports ||
            core_->report_bytes + copy.size() > 2 * kMaxBody) {
            return false;
        }
        core_->report_bytes += copy.size();
        core_->reports.push_back(std::move(copy));
    } catch (...) {
        return false;
    }
    Service::process().wake();
    return true;
}

bool Council::propose(Proposal proposal) noexcept {
    if (!leader_ || !open() || proposal.body.size() > kMaxBody) {
        return false;
    }
    {
        const Monitor::Lock lock(core_->monitor);
        if (core_->proposing || core_->left || core_->phase == Phase::Asked ||
            core_->phase == Phase::Lost || proposal.serial <= core_->serial) {
            return false;
        }
        core_->proposing = true;
        core_->proposal = std::move(proposal);
    }
    Service::process().wake();
    return true;
}

void Council::answer(std::uint64_t serial, bool yes) noexcept {
    try {
        const Monitor::Lock lock(core_->monitor);
        if (core_->phase != Phase::Asked || core_->serial != serial || !core_->answers.empty()) {
            return;
        }
        core_->answers.emplace_back(serial, yes);
    } catch (...) {
        return;  // an answer that never comes is a No, when the leader's patience ends
    }
    Service::process().wake();
}

Decision Council::wait_decision(std::uint64_t serial, Clock::time_point deadline) noexcept {
    Decision found = Decision::Lost;
    {
        Monitor::Lock lock(core_->monitor);
        if (leader_ && core_->undecided(serial)) {
            // The job has come to the switch on all ranks, or will: it stands still for one answer.
            core_->overdue = Clock::now() + kOverdue;
            Service::process().wake();
        }
        while (core_->undecided(serial)) {
            // Once decided() runs the decision is known, and it is short.
            if (core_->phase == Phase::Deciding) {
                lock.wait_until(Clock::now() + std::chrono::milliseconds(100));
                continue;
            }
            // A process that was stopped meanwhile has not waited: the decision may lie in its
            // socket.
            const Clock::time_point until = std::min(deadline, Clock::now() + kSlice);
            const bool woken = lock.wait_until(until);
            const Clock::duration late = Clock::now() - until;
            if (late > kSlice) {
                put_off(deadline, late);
            }
            if (!woken && Clock::now() >= deadline && core_->serial == serial &&
                core_->phase == Phase::Asked) {
                core_->phase = Phase::Lost;
                core_->abandoned = true;
            }
        }
        // Not by the phase: before this thread had the lock again, the next proposal may have come.
        found = core_->found(serial);
    }
    if (found == Decision::Lost) {
        Service::process().wake();
    }
    return found;
}

Verdict Council::wait_verdict(Clock::time_point deadline) noexcept {
    Monitor::Lock lock(core_->monitor);
    while (verdict() == Verdict::Pending && !core_->left && lock.wait_until(deadline)) {
    }
    return verdict();
}

void Council::leave() noexcept {
    {
        Monitor::Lock lock(core_->monitor);
        if (core_->left) {
            return;
        }
        core_->left = true;
        if (core_->phase == Phase::Asked) {
            core_->phase = Phase::Lost;
        }
        open_.store(false, std::memory_order_release);
        lock.notify();
    }
    Service::process().wake();
}

void Council::let_go() noexcept {
    Monitor::Lock lock(core_->monitor);
    core_->let_go = true;
    lock.notify();
}

bool write_trailer(deft_nccl_unique_id_t& id, std::string& why, Maker maker) noexcept {
    try {
        return Service::process().issue(id, maker, why);
    } catch (...) {
        return false;
    }
}

Maker maker_of(const deft_nccl_unique_id_t& id) noexcept {
    wire::Trailer trailer;
    if (wire::decode(Service::trailer_of(id), trailer) != wire::Decoded::Ok) {
        return Maker::Unknown;
    }
    switch (static_cast<Maker>(trailer.maker)) {
        case Maker::Unknown:
        case Maker::NotOnIb:
        case Maker::OnIb:
            return static_cast<Maker>(trailer.maker);
    }
    return Maker::Unknown;
}

bool has_trailer(const deft_nccl_unique_id_t& id, std::string* why) noexcept {
    try {
        wire::Trailer trailer;
        switch (wire::decode(Service::trailer_of(id), trailer)) {
            case wire::Decoded::Ok:
                return true;
            case wire::Decoded::Absent:
                if (why != nullptr) {
                    *why =
                        "the process that made its unique id runs without deft, or NCCL_COMM_ID "
                        "is set";
                }
                return false;
            case wire::Decoded::WrongVersion:
                if (why != nullptr) {
                    *why = "the process that made its unique id runs another release of deft";
                }
                return false;
            case wire::Decoded::Malformed:
                break;
        }
        if (why != nullptr) {
            *why = "the spare bytes of its unique id are damaged";
        }
    } catch (...) {
    }
    return false;
}

CouncilRef join(const deft_nccl_unique_id_t& id, int nranks, int rank,
                const Terms& terms) noexcept {
    try {
        return Service::process().join(id, nranks, rank, terms);
    } catch (...) {
        return {};
    }
}

CouncilRef inherit(Council& parent, std::uint64_t child, int nranks, int rank,
                   const Terms& terms) noexcept {
    try {
        return Service::process().inherit(parent, child, nranks, rank, terms);
    } catch (...) {
        return {};
    }
}

}  // namespace deft::agreement
