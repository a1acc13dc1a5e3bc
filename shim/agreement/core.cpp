// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/core.h"

#include <unistd.h>
#include <algorithm>

#include "base/log.h"
#include "shim/agreement/service.h"

namespace deft::agreement {
namespace {

constexpr std::size_t kMaxUnheard = 1024;

std::vector<std::string> words(const std::string& text) {
    std::vector<std::string> found;
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        if (end > at) {
            found.push_back(text.substr(at, end - at));
        }
        at = end + 1;
    }
    return found;
}

std::string name_of(const Party& party) {
    return "rank " + std::to_string(party.rank) + " (" + party.host + ")";
}

// The first word of `a` that `b` lacks.
std::string first_missing(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    for (const std::string& word : a) {
        if (std::find(b.begin(), b.end(), word) == b.end()) {
            return word;
        }
    }
    return "";
}

}  // namespace

Pace& pace() {
    static Pace pace;
    return pace;
}

const std::string& own_host() {
    static const auto& name = *new std::string([] {
        char buffer[64] = "";
        if (::gethostname(buffer, sizeof(buffer)) != 0) {
            return std::string("unknown");
        }
        buffer[sizeof(buffer) - 1] = '\0';
        return std::string(buffer);
    }());
    return name;
}

std::string difference(const Party& leader, const Party& member) {
    const auto differs = [&](const std::string& here, const std::string& there) {
        return name_of(member) + " has " + (there.empty() ? "nothing for it" : there) + ", " +
               name_of(leader) + " has " + (here.empty() ? "nothing for it" : here);
    };
    if (leader.nranks != member.nranks) {
        return differs(std::to_string(leader.nranks) + " ranks",
                       std::to_string(member.nranks) + " ranks");
    }
    if (leader.deft_version != member.deft_version) {
        return differs("deft " + leader.deft_version, "deft " + member.deft_version);
    }
    if (leader.nccl_version != member.nccl_version) {
        return differs("NCCL " + std::to_string(leader.nccl_version),
                       "NCCL " + std::to_string(member.nccl_version));
    }
    if (leader.settings != member.settings) {
        const std::vector<std::string> here = words(leader.settings);
        const std::vector<std::string> there = words(member.settings);
        return differs(first_missing(here, there), first_missing(there, here));
    }
    return "";
}

CouncilRef Council::Core::make(int rank, int nranks, bool leader, const Terms& terms) {
    CouncilRef council = CouncilRef::adopt(new Council(rank, nranks, leader));
    council->core_->terms = terms;
    council->core_->terms.settings.resize(std::min(terms.settings.size(), kMaxSettings));
    return council;
}

// ---- the agreement thread's side ----------------------------------------------------------------

void Council::Core::set_verdict(Verdict verdict, const std::string& why, const Off& off) {
    bool known = false;  // that it is Off
    bool own_end = false;
    {
        Monitor::Lock lock(monitor);
        known = council->verdict() == Verdict::Off;
        if (council->verdict() == Verdict::On || (known && !off_for_now)) {
            return;
        }
        off_for_now = verdict == Verdict::Off && off.again;
        reason = why;
        own_end = left;
        council->open_.store(verdict == Verdict::On && !left, std::memory_order_release);
        council->verdict_.store(verdict, std::memory_order_release);
        lock.notify();
    }
    if (verdict == Verdict::On) {
        DEFT_INFO("all %d ranks of the communicator agree: %s", council->nranks_,
                  terms.settings.c_str());
    } else {
        say_off(why, off, known || own_end);
    }
    if (!known || verdict == Verdict::On) {
        const MutexLock calls(calling);
        verdict_told = false;
    }
    catch_up();
}

// quiet: it is known, or this rank has ended the communicator.
void Council::Core::say_off(const std::string& why, const Off& off, bool quiet) {
    // An end says nothing against any rank, and must not use up the one warning of those that do.
    static std::atomic_flag warned = ATOMIC_FLAG_INIT;
    const bool first = !quiet && !off.ended && !warned.test_and_set(std::memory_order_relaxed);
    log::write(first   ? log::Level::Warn
               : quiet ? log::Level::Debug
                       : log::Level::Info,
               off.ended ? "a communicator ends before its ranks have agreed: %s"
               : off.again
                   ? "not every rank of a communicator can use deft, so all its calls go to "
                     "NCCL unchanged, on every rank, until the missing ones have come: %s"
                   : "not every rank of a communicator can use deft, so all its calls go to "
                     "NCCL unchanged, on every rank: %s",
               why.c_str());
}

void Council::Core::close(const std::string& why, bool sought) {
    {
        Monitor::Lock lock(monitor);
        if (!council->open_.exchange(false, std::memory_order_acq_rel)) {
            return;
        }
        reason = why;
        if (phase == Phase::Asked && !sought) {
            phase = Phase::Lost;
        }
        proposing = false;
        proposal.reset();
        lock.notify();
    }
    DEFT_INFO("the ranks of a communicator agree on nothing new any more: %s", why.c_str());
    catch_up();
}

void Council::Core::give_up_decision() {
    Monitor::Lock lock(monitor);
    if (phase == Phase::Asked) {
        phase = Phase::Lost;
        lock.notify();
    }
}

Answer Council::Core::ask(const Proposal& asked) {
    {
        const Monitor::Lock lock(monitor);
        if (left || abandoned) {
            return Answer::No;
        }
        phase = Phase::Asked;
        serial = asked.serial;
        overdue = kNever;
    }
    const MutexLock calls(calling);
    return member != nullptr ? member->prepare(asked) : Answer::No;
}

bool Council::Core::begin_decision(std::uint64_t decided) {
    const Monitor::Lock lock(monitor);
    if (abandoned || left || phase != Phase::Asked || serial != decided) {
        return false;
    }
    phase = Phase::Deciding;
    return true;
}

void Council::Core::finish_decision(std::uint64_t decided, bool commit) {
    {
        const MutexLock calls(calling);
        if (member != nullptr) {
            member->decided(decided, commit);
        }
    }
    Monitor::Lock lock(monitor);
    phase = commit ? Phase::Committed : Phase::Cancelled;
    std::move_backward(past.begin(), past.end() - 1, past.end());
    past.front() = {decided, commit ? Decision::Commit : Decision::Cancel};
    proposing = false;
    lock.notify();
}

Decision Council::Core::found(std::uint64_t wanted) const {
    const auto* const at = std::find_if(past.begin(), past.end(), [wanted](const Decided& decided) {
        return decided.serial == wanted;
    });
    return at != past.end() ? at->found : Decision::Lost;
}

bool Council::Core::undecided(std::uint64_t asked) const {
    return serial == asked && !left && !let_go &&
           (phase == Phase::Asked || phase == Phase::Deciding);
}

void Council::Core::let_memory_go() {
    std::string().swap(terms.settings);
    std::vector<std::chrono::nanoseconds>().swap(terms.again);
    reports.clear();
    proposal.reset();
    std::vector<std::pair<std::uint64_t, bool>>().swap(answers);
    std::vector<wire::Meeting>().swap(posts);
    std::vector<Question>().swap(questions);
}

void Council::Core::hear(int rank, std::span<const std::byte> report) {
    const MutexLock calls(calling);
    if (member != nullptr && unheard.empty()) {
        member->heard(rank, report);
        return;
    }
    if (unheard.size() == kMaxUnheard) {
        unheard.pop_front();
    }
    unheard.emplace_back(rank, std::vector<std::byte>(report.begin(), report.end()));
    catch_up();
}

void Council::Core::tell_child(Council& child, const wire::Meeting* meeting,
                               const std::string& why) {
    if (child.core_->role == nullptr) {
        return;  // it has left
    }
    wire::Trailer trailer;
    if (meeting != nullptr && wire::decode(meeting->trailer, trailer) == wire::Decoded::Ok) {
        child.core_->role->found(&trailer, "");
    } else {
        child.core_->role->found(nullptr, why);
    }
}

void Council::Core::catch_up() {
    const MutexLock calls(calling);
    const Verdict verdict = council->verdict();
    if (member == nullptr || verdict == Verdict::Pending) {
        return;
    }
    if (!verdict_told) {
        verdict_told = true;
        member->verdict(verdict);
    }
    while (member != nullptr && !unheard.empty()) {
        const auto [rank, report] = std::move(unheard.front());
        unheard.pop_front();
        member->heard(rank, report);
    }
    if (member == nullptr || verdict == Verdict::Off || council->open() || closed_told) {
        return;
    }
    std::string why;
    {
        const Monitor::Lock lock(monitor);
        if (left) {
            return;  // it knows
        }
        why = reason;
    }
    closed_told = true;
    member->closed(why.c_str());
}

}  // namespace deft::agreement
