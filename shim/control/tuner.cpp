// SPDX-License-Identifier: Apache-2.0
#include "shim/control/tuner.h"

#include <algorithm>

#include "base/log.h"
#include "shim/cuda/event_pool.h"

namespace deft::director {
namespace {

// A rank's background thread may be late, and what all tell is no better than what many do.
constexpr int kTelling = 64;
// An order takes part of a KiB. A job whose calls change without end is left alone then.
constexpr std::size_t kMostTables = 256;
constexpr std::int64_t kRateWindow = 500'000'000;

}  // namespace

Tuner::Tuner(const CommunicatorInfo& info, agreement::Council& council)
    : info_(info),
      council_(council),
      switch_(
          info.rank,
          [&council](std::uint64_t serial, agreement::Clock::time_point deadline) {
              return council.wait_decision(serial, deadline);
          },
          info.tuned_calls),
      turn_(tuning::Turn::of(info.device)) {}

bool Tuner::tells() const {
    return info_.rank < kTelling;
}

bool Tuner::same_calls(const tuning::Order& order) const {
    std::uint64_t own = 0;
    if (!switch_.history(order.mark, own)) {
        return false;  // this rank is behind the leader, or was not there from the beginning
    }
    if (own != order.history) {
        DEFT_INFO(
            "rank %d has made other calls on a communicator than the rank that leads it, or in "
            "another order: NCCL is not tuned there",
            info_.rank);
    }
    return own == order.history;
}

// On this rank NCCL must have asked for each of these calls, and have all that is to be tried: what
// is agreed on is done by all ranks or by none.
bool Tuner::possible(const tuning::Order& order) const {
    if (info_.limits.names_algorithm != nullptr || !same_calls(order)) {
        return false;
    }
    for (const tuning::Entry& entry : order.entries) {
        if (!possible(order, entry)) {
            return false;
        }
    }
    return true;
}

bool Tuner::possible(const tuning::Order& order, const tuning::Entry& entry) const {
    const tuning::JobCalls::Repeated* const known = job_.find(entry.key);
    if (known == nullptr || !known->steady) {
        return false;
    }
    const bool limited = limits_channels();
    return std::all_of(
        entry.candidates.begin(), entry.candidates.end(), [&](const CollectiveChoice& choice) {
            // Connections of the first candidate's algorithm are there already.
            const bool connects = order.phase == tuning::Phase::Trial && choice.algorithm >= 0 &&
                                  choice.algorithm != known->offer.own.algorithm &&
                                  choice.algorithm != entry.candidates.front().algorithm;
            return known->offer.has(choice) && (choice.channels == 0 || !limited) &&
                   (choice.own() || tuning::ordinary(known->offer.own.algorithm)) &&
                   (!connects || room_for_algorithms());
        });
}

std::optional<agreement::Answer> Tuner::prepare(const agreement::Proposal& proposal) noexcept {
    using agreement::Answer;
    try {
        tuning::Order order;
        if (!tuning::decode(proposal.body, order)) {
            return std::nullopt;
        }
        order.serial = proposal.serial;
        order.start = proposal.switch_call;
        const MutexLock lock(mutex_);
        prepared_ = proposal.serial;
        if (tables_.size() >= kMostTables || switch_.committed_ahead() || !possible(order)) {
            return Answer::No;
        }
        if (order.phase != tuning::Phase::Fixed && !turn_.take(this, cuda::host_now())) {
            return Answer::No;
        }
        tables_.push_back(std::make_unique<tuning::Table>(std::move(order)));
        return switch_.name(proposal.serial, proposal.switch_call, tables_.back().get())
                   ? Answer::Yes
                   : Answer::No;
    } catch (...) {
        return Answer::No;
    }
}

bool Tuner::decided(std::uint64_t serial, bool commit) noexcept {
    try {
        const MutexLock lock(mutex_);
        if (prepared_ != serial) {
            return false;
        }
        prepared_ = 0;
        if (commit) {
            switch_.commit();
            collect(tables_.back()->order());
        } else {
            switch_.cancel(serial);
        }
        if (collected_.over) {
            turn_.leave(this);
        }
        decisions_[serial] = commit;
        return true;
    } catch (...) {
        return true;  // the leader hears nothing of this rank's times
    }
}

void Tuner::collect(const tuning::Order& order) {
    collected_ = {};
    collected_.order = order;
    collected_.over = order.phase == tuning::Phase::Fixed;
    told_.clear();
    if (order.phase == tuning::Phase::Trial) {
        ahead_ns_ = 0;
        for (const tuning::Entry& entry : order.entries) {
            collected_.times.emplace_back(tuning::Table::samples_of(order, entry), 0);
            collected_.missing += collected_.times.back().size();
        }
    }
    if (order.phase == tuning::Phase::Compare) {
        collected_.begins.resize(tuning::kWindows + 1, 0);
    }
}

bool Tuner::heard(int rank, std::span<const std::byte> report) noexcept {
    try {
        std::uint64_t serial = 0;
        tuning::Times times;
        if (!tuning::decode(report, serial, times)) {
            return false;
        }
        const MutexLock lock(mutex_);
        if (serial == collected_.order.serial && times.size() == collected_.times.size()) {
            told_[rank] = std::move(times);
        }
    } catch (...) {
    }
    return true;
}

void Tuner::collect_sample(const tuning::SeenCall& call) {
    const auto entry = static_cast<std::size_t>(call.entry);
    const auto sample = static_cast<std::size_t>(call.sample);
    if (call.sample < 0 || entry >= collected_.times.size() ||
        sample >= collected_.times[entry].size()) {
        return;
    }
    if (call.elapsed_ns >= 0) {
        collected_.times[entry][sample] =
            static_cast<std::uint64_t>(std::max<std::int64_t>(call.elapsed_ns, 1));
        ahead_ns_ = std::max(ahead_ns_, cuda::host_now() - call.issued_ns);
    }
    collected_.missing -= collected_.missing > 0 ? 1 : 0;
}

// A window begins with the first call of it that is known: a plan may carry out one, of which
// nobody tells.
void Tuner::collect_begin(const tuning::SeenCall& call) {
    const tuning::Order& order = collected_.order;
    const std::uint64_t window =
        (call.ordinal - order.start) / std::max<std::uint64_t>(order.window_calls, 1);
    if (window < collected_.begins.size() && collected_.begins[window] == 0) {
        collected_.begins[window] = call.issued_ns;
    }
}

// All samples are there, or some calls are not made any more: what is known of the others counts.
bool Tuner::trial_over() const {
    const tuning::Order& order = collected_.order;
    if (order.phase != tuning::Phase::Trial || collected_.told || collected_.times.empty()) {
        return false;
    }
    const bool late =
        latest_ >= order.start && latest_ - order.start > tuning::Table::calls_of(order);
    return collected_.missing == 0 || late;
}

// Other communicators have their turn, unless the leader goes on at once.
void Tuner::note_over() {
    const tuning::Order& order = collected_.order;
    const bool compared = order.phase == tuning::Phase::Compare &&
                          latest_ >= order.start + tuning::kWindows * order.window_calls;
    if (!collected_.over && (collected_.told || compared)) {
        collected_.over = true;
        turn_.pause(this, cuda::host_now());
    }
}

void Tuner::note(std::span<const tuning::SeenCall> calls) {
    std::vector<std::byte> report;
    {
        const MutexLock lock(mutex_);
        for (const tuning::SeenCall& call : calls) {
            job_.note(call);
            ++rate_calls_;
            if (call.issued_ns - rate_since_ns_ > kRateWindow) {
                rate_ = static_cast<double>(rate_calls_) * 1e9 /
                        static_cast<double>(call.issued_ns - rate_since_ns_);
                rate_since_ns_ = call.issued_ns;
                rate_calls_ = 0;
            }
            if (call.order == collected_.order.serial) {
                collect_sample(call);
            }
            if (collected_.order.phase == tuning::Phase::Compare &&
                call.ordinal >= collected_.order.start) {
                collect_begin(call);
            }
            latest_ = std::max(latest_, call.ordinal);
        }
        if (trial_over()) {
            collected_.told = true;
            report = tuning::encode(collected_.order.serial, collected_.times);
        }
        note_over();
    }
    if (!report.empty() && tells()) {
        (void)council_.report(report);
    }
}

bool Tuner::may_name(tuning::Phase phase) const noexcept {
    return switch_.clear() &&
           (phase == tuning::Phase::Fixed || turn_.free_for(this, cuda::host_now()));
}

void Tuner::note_free_memory(std::uint64_t bytes, std::int64_t now_ns) noexcept {
    // A tree takes two or three connections more on each channel, of some ten MB each, and NCCL may
    // have 32 channels. The job's own memory may grow meanwhile.
    constexpr std::uint64_t kForConnections = std::uint64_t{2} << 30;
    memory_seen_ns_.store(bytes >= kForConnections ? now_ns : kNever, std::memory_order_relaxed);
}

bool Tuner::room_for_algorithms() const noexcept {
    constexpr std::int64_t kHolds = 10'000'000'000;
    const std::int64_t seen = memory_seen_ns_.load(std::memory_order_relaxed);
    return seen != kNever && cuda::host_now() - seen <= kHolds &&
           alone_.load(std::memory_order_relaxed);
}

std::vector<tuning::JobCalls::Repeated> Tuner::repeated(std::uint64_t often,
                                                        std::uint64_t within) const {
    const MutexLock lock(mutex_);
    return job_.most(often, within, tuning::kMostEntries, info_.nranks);
}

bool Tuner::steady(const tuning::Key& key) const {
    const MutexLock lock(mutex_);
    const tuning::JobCalls::Repeated* const known = job_.find(key);
    return known != nullptr && known->steady;
}

Tuner::Outcome Tuner::outcome(std::uint64_t serial) const {
    const MutexLock lock(mutex_);
    const auto found = decisions_.find(serial);
    return found == decisions_.end() ? Outcome::Open
           : found->second           ? Outcome::Committed
                                     : Outcome::Cancelled;
}

std::optional<tuning::Times> Tuner::times(std::uint64_t serial) const {
    const MutexLock lock(mutex_);
    const auto telling = static_cast<std::size_t>(std::min(info_.nranks, kTelling));
    if (collected_.order.serial != serial || told_.size() < telling) {
        return std::nullopt;
    }
    std::vector<tuning::Times> all;
    for (const auto& [rank, times] : told_) {
        all.push_back(times);
    }
    return tuning::least(all);
}

std::vector<std::int64_t> Tuner::window_begins(std::uint64_t serial) const {
    const MutexLock lock(mutex_);
    return collected_.order.serial == serial ? collected_.begins : std::vector<std::int64_t>{};
}

std::int64_t Tuner::ahead_ns() const {
    const MutexLock lock(mutex_);
    return ahead_ns_;
}

double Tuner::call_rate() const {
    const MutexLock lock(mutex_);
    return rate_;
}

}  // namespace deft::director
