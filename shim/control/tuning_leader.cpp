// SPDX-License-Identifier: Apache-2.0
#include "shim/control/tuning_leader.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "shim/cuda/event_pool.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

constexpr std::uint64_t kOften = 8;  // calls of a kind before it is looked at
constexpr unsigned kMostRounds = 4;  // of tuning, of a job that goes on to make new calls
constexpr unsigned kMostTries = 6;   // calls named in vain, each further ahead
// Rounds that the ranks did not begin: other communicators of theirs may be under way.
constexpr unsigned kMostPutOff = 6;
constexpr std::int64_t kPutOff = 15'000'000'000;  // nanoseconds, doubled each time
constexpr double kSwitchAhead = 0.5;              // seconds
constexpr std::uint64_t kAheadIterations = 3;
// A host that is iterations ahead of the device meets a window early.
constexpr std::uint64_t kWindowIterations = 8;
// Calls: a rank that is ahead has to remember it still.
constexpr std::uint64_t kFarthestBack = tuning::CallHistory::kCalls / 2;
constexpr double kWindow = 0.1;                       // seconds, at least
constexpr std::int64_t kLongest = 1'800'000'000'000;  // nanoseconds, of a trial

}  // namespace

const char* TuningLeader::state_name() const {
    switch (state_) {
        case State::Watching:
            return "watching";
        case State::Trying:
        case State::Narrowing:
            return "trying";
        case State::Comparing:
        case State::Settling:
            return "comparing";
        case State::Settled:
            return "settled";
    }
    return "";
}

TuningFacts TuningLeader::facts() const {
    TuningFacts facts;
    facts.state = state_name();
    facts.reason = reason_;
    facts.ratio = ratio_;
    for (const Kept& kept : kept_) {
        facts.calls.push_back(
            {tuning::to_text(kept.key), tuning::to_text(kept.choice), kept.own_ms, kept.chosen_ms});
    }
    return facts;
}

tuning::Freedom TuningLeader::freedom() const {
    // Releases before it were not looked at for what they make of a number above their own.
    constexpr int kChannelsSince = 22700;
    return {info_.nranks, tuner_.room_for_algorithms(),
            info_.table->version >= kChannelsSince && !tuner_.limits_channels(),
            tuner_may_reorder()};
}

void TuningLeader::lead(std::uint64_t iteration, bool at_rest, const Propose& propose) {
    iteration_ = iteration;
    switch (state_) {
        case State::Watching:
        case State::Settled:
            if (at_rest && iteration > 0) {
                watch(propose);
            }
            break;
        case State::Trying:
        case State::Narrowing:
        case State::Comparing:
        case State::Settling:
            await(propose);
            break;
    }
}

// Calls that the job repeats and that have not been tuned yet are tried; those that have stay.
void TuningLeader::watch(const Propose& propose) {
    if (rounds_ >= kMostRounds || tuner_.calls() < next_look_ ||
        cuda::host_now() < rests_until_ns_) {
        return;
    }
    next_look_ = tuner_.calls() + kOften * iteration_;
    const char* const fixed = tuner_.job_names_algorithm();
    if (fixed != nullptr) {
        reason_ = std::string(fixed) + " is set";
        rounds_ = kMostRounds;
        return;
    }
    tuning::Order order;
    // A kind of which the ranks can agree on nothing any more goes back to NCCL's own choice.
    std::vector<Kept> held;
    std::copy_if(kept_.begin(), kept_.end(), std::back_inserter(held),
                 [this](const Kept& kept) { return tuner_.steady(kept.key); });
    found_ = held;
    for (const Kept& kept : held) {
        order.entries.push_back({kept.key, {kept.choice}});
    }
    bool any = false;
    for (const tuning::JobCalls::Repeated& call : tuner_.repeated(kOften, 2 * iteration_)) {
        const bool known = std::any_of(kept_.begin(), kept_.end(),
                                       [&call](const Kept& kept) { return kept.key == call.key; });
        if (!known && order.entries.size() < tuning::kMostEntries) {
            order.entries.push_back({call.key, tuning::ways(call, freedom())});
            found_.push_back({call.key, {}, 0, 0, call.offer.own, false});
            any = true;
        }
    }
    if (!any) {
        reason_ = kept_.empty() ? "NCCL does not ask this library, or no call repeats" : reason_;
        return;
    }
    kept_ = std::move(held);
    ++rounds_;
    next_trial(State::Trying, std::move(order), tuning::kLookRounds);
    await(propose);
}

void TuningLeader::next(State state, tuning::Order order) {
    state_ = state;
    order_ = std::move(order);
    serial_ = 0;
    since_ns_ = 0;
    tries_ = 0;
}

void TuningLeader::next_trial(State state, tuning::Order order, std::uint8_t rounds) {
    order.phase = tuning::Phase::Trial;
    order.rounds = rounds;
    next(state, std::move(order));
}

// False: the council is busy, the last switch is still ahead, or another communicator has its turn.
bool TuningLeader::send(const Propose& propose) {
    if (!tuner_.may_name(order_.phase)) {
        return false;
    }
    const std::uint64_t iteration = std::max<std::uint64_t>(iteration_, 1);
    const double rate = tuner_.call_rate();
    const std::uint64_t ahead =
        kAheadIterations * iteration + static_cast<std::uint64_t>(rate * kSwitchAhead) + 1;
    const auto in_window =
        static_cast<std::uint64_t>(rate * kWindow / static_cast<double>(iteration));
    order_.window_calls = iteration * std::max(kWindowIterations, in_window + 1);
    const std::uint64_t calls = tuner_.calls();
    // All ranks should have made the call up to which they are compared. Further back with each
    // try.
    const std::uint64_t back = std::min(ahead << tries_, kFarthestBack);
    order_.mark = tuning::CallHistory::mark_before(calls - std::min(back, calls));
    if (!tuner_.history(order_.mark, order_.history)) {
        return false;
    }
    started_at_ = calls + (ahead << tries_);
    return propose(tuning::encode(order_), started_at_, serial_);
}

void TuningLeader::await(const Propose& propose) {
    if (serial_ == 0) {
        if (!send(propose)) {
            serial_ = 0;
        }
        return;
    }
    const Tuner::Outcome outcome = tuner_.outcome(serial_);
    if (outcome == Tuner::Outcome::Open) {
        return;
    }
    if (outcome == Tuner::Outcome::Cancelled) {
        cancelled();
        return;
    }
    since_ns_ = since_ns_ != 0 ? since_ns_ : cuda::host_now();
    if (state_ == State::Settling) {
        settled();
        return;
    }
    if (state_ == State::Comparing) {
        judge();
    } else if (const auto times = tuner_.times(serial_)) {
        take_times(*times);
        return;
    }
    if (state_ != State::Settling && over_time()) {
        give_up("the job's calls have changed meanwhile");
    }
}

void TuningLeader::cancelled() {
    serial_ = 0;
    ++tries_;
    if (state_ == State::Trying && tries_ == kMostTries / 2) {
        drop_other_algorithms();  // some rank may have no room for their connections
    }
    if (tries_ < kMostTries) {
        return;
    }
    if (state_ == State::Trying) {
        put_off();
    } else {
        give_up("the ranks did not agree any more");
    }
}

// Nothing has been tried, so nothing is known.
void TuningLeader::put_off() {
    reason_ =
        "the ranks did not agree: NCCL does not ask this library on all of them, they make "
        "different calls, or other communicators of theirs are tuned";
    DEFT_INFO("tuner: nothing is changed: %s", reason_.c_str());
    rests_until_ns_ = cuda::host_now() + (kPutOff << put_off_);
    rounds_ = ++put_off_ < kMostPutOff ? rounds_ - 1 : kMostRounds;
    found_ = kept_;
    state_ = kept_.empty() ? State::Watching : State::Settled;
}

void TuningLeader::drop_other_algorithms() {
    for (std::size_t i = 0; i < order_.entries.size(); ++i) {
        const std::int8_t own = found_[i].own.algorithm;
        if (i >= kept_.size()) {
            std::erase_if(order_.entries[i].candidates, [own](const CollectiveChoice& choice) {
                return choice.algorithm >= 0 && choice.algorithm != own;
            });
        }
    }
}

// Twice what the ranks wait for a trial's samples.
bool TuningLeader::over_time() const {
    const std::uint64_t most = 2 * tuning::Table::calls_of(order_);
    return tuner_.calls() > started_at_ + most || cuda::host_now() - since_ns_ > kLongest;
}

void TuningLeader::take_verdict(std::size_t entry, const std::vector<std::uint64_t>& times) {
    const tuning::Entry& tried = order_.entries[entry];
    Kept& found = found_[entry];
    const bool trying = state_ == State::Trying;
    const tuning::Verdict verdict =
        trying ? tuning::fastest(tried, times) : tuning::narrowest(tried, times);
    if (verdict.own_ms == 0) {  // too few times
        // One that stops while it is narrowed keeps what its trial has found.
        found.aside = trying;
        return;
    }
    found.choice = tried.candidates[verdict.candidate];
    found.own_ms = trying || found.own_ms == 0 ? verdict.own_ms : found.own_ms;
    found.chosen_ms = verdict.chosen_ms;
}

// A look at what is to be tried is over. False: of all that nothing but the first is left.
bool TuningLeader::take_look(const tuning::Times& times) {
    bool any = false;
    tuning::Order order = order_;
    for (std::size_t i = 0; i < order.entries.size(); ++i) {
        tuning::Entry& entry = order.entries[i];
        if (entry.candidates.size() == 1) {
            continue;
        }
        const tuning::Look look = tuning::look(entry, times[i]);
        entry.candidates = look.worth_trying;
        if (entry.candidates.size() > 1) {
            any = true;
        } else {
            // What has not been compared with NCCL's own choice holds in trials alone.
            entry.candidates = {{}};
            found_[i].aside = found_[i].aside || (state_ == State::Trying && look.own_ms == 0);
            found_[i].own_ms = found_[i].own_ms != 0 ? found_[i].own_ms : look.own_ms;
            found_[i].chosen_ms = look.own_ms;
        }
    }
    if (any) {
        next_trial(state_, std::move(order), tuning::kRounds);
    }
    return any;
}

void TuningLeader::take_times(const tuning::Times& times) {
    const bool looked = order_.rounds == tuning::kLookRounds;
    if (looked && take_look(times)) {
        return;
    }
    const bool trying = state_ == State::Trying;
    tuning::Order order;
    for (std::size_t i = 0; i < order_.entries.size(); ++i) {
        const tuning::Entry& entry = order_.entries[i];
        if (!looked && entry.candidates.size() > 1) {
            take_verdict(i, times[i]);
        }
        order.entries.push_back({entry.key, narrower(i)});
    }
    if (trying && freedom().channels) {
        next_trial(State::Narrowing, std::move(order), tuning::kLookRounds);
        return;
    }
    bool any = false;
    for (std::size_t i = 0; i < order.entries.size(); ++i) {
        const CollectiveChoice before = i < kept_.size() ? kept_[i].choice : CollectiveChoice{};
        order.entries[i].candidates = {before, found_[i].choice};
        any = any || before != found_[i].choice;
    }
    if (!any) {
        const bool all_aside =
            std::all_of(found_.begin() + static_cast<std::ptrdiff_t>(kept_.size()), found_.end(),
                        [](const Kept& found) { return found.aside; });
        give_up(all_aside ? "the job's calls have changed meanwhile"
                          : "NCCL's own choice is the best");
        return;
    }
    order.phase = tuning::Phase::Compare;
    next(State::Comparing, std::move(order));
}

// What is to be tried next of an entry.
std::vector<CollectiveChoice> TuningLeader::narrower(std::size_t entry) const {
    const Kept& found = found_[entry];
    if (entry < kept_.size()) {
        return {kept_[entry].choice};
    }
    if (found.aside) {
        return {{}};
    }
    std::vector<CollectiveChoice> narrower =
        tuning::narrower(found.key, found.choice, found.own, freedom());
    if (narrower.size() == 1) {
        return {{}};  // what has not been compared with NCCL's own choice holds in trials alone
    }
    return narrower;
}

void TuningLeader::judge() {
    const std::vector<std::int64_t> begins = tuner_.window_begins(serial_);
    if (begins.empty() || begins.back() == 0) {
        return;
    }
    const double ratio = tuning::ratio_of(begins);
    const bool narrower_alone = std::none_of(found_.begin(), found_.end(), [](const Kept& found) {
        return found.choice.algorithm >= 0;
    });
    const double most = narrower_alone ? tuning::kAboutAsLong : tuning::kGain;
    if (ratio == 0 || ratio > most) {
        give_up(ratio == 0 ? "the comparison's times are missing"
                           : "the iteration takes " + std::to_string(ratio) +
                                 " times as long with what is faster by itself");
        return;
    }
    compared_ = ratio;
    settle();
}

// What was kept before holds on; of what was tried now, NCCL's own choice. No order says so: trials
// and comparisons end by themselves.
void TuningLeader::give_up(const std::string& why) {
    reason_ = why;
    DEFT_INFO("tuner: nothing is changed: %s", why.c_str());
    for (std::size_t i = kept_.size(); i < found_.size(); ++i) {
        Kept own = found_[i];
        own.choice = {};
        own.chosen_ms = own.own_ms;
        if (!own.aside) {  // one that is aside is new when it comes again
            kept_.push_back(own);
        }
    }
    found_ = kept_;
    state_ = State::Settled;
}

void TuningLeader::settle() {
    std::erase_if(found_, [](const Kept& found) { return found.aside; });
    tuning::Order order;
    for (const Kept& found : found_) {
        order.entries.push_back({found.key, {found.choice}});
    }
    next(State::Settling, std::move(order));
}

// All ranks have the order that says so.
void TuningLeader::settled() {
    kept_ = found_;
    ratio_ = compared_;
    reason_.clear();
    state_ = State::Settled;
    for (const Kept& kept : kept_) {
        DEFT_INFO("tuner: %s: %s (%.3f ms, NCCL's own choice %.3f ms)",
                  tuning::to_text(kept.key).c_str(), tuning::to_text(kept.choice).c_str(),
                  kept.chosen_ms, kept.own_ms);
    }
    DEFT_INFO("tuner: an iteration takes %.3f of its time before", ratio_);
}

}  // namespace deft::director
