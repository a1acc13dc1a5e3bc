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
// A switch is named so many seconds ahead while nobody knows how long the ranks take to agree; then
// several times as far as they took, within these bounds.
constexpr double kMostAhead = 0.5;
constexpr double kLeastAhead = 0.1;
constexpr double kVotesAhead = 4;
constexpr std::uint64_t kAheadIterations = 3;
// Where iterations are shorter, calls cost little and their times lie far apart.
constexpr double kShortIteration = 0.02;  // seconds
// Launches and wake-ups take as long as shorter iterations, and swing from second to second. Such
// an iteration has to become faster by so much, and fewer channels alone leave nothing to anybody.
constexpr double kTinyIteration = 0.001;  // seconds
constexpr double kTinyGain = 0.8;
// Of a comparison's windows.
constexpr double kLeastIterations = 4;
constexpr double kMostIterations = 8;
// Calls: a rank that is ahead has to remember it still.
constexpr std::uint64_t kFarthestBack = tuning::CallHistory::kCalls / 2;
constexpr double kWindow = 0.2;                       // seconds, at least
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
    return {info_.nranks, tuner_.room_for_algorithms(), !tuner_.limits_channels() && channels_,
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
        reason_ = std::string(fixed) + " is the job's";
        rounds_ = kMostRounds;
        return;
    }
    channels_ = true;
    // A kind of which the ranks can agree on nothing any more goes back to NCCL's own choice.
    std::vector<Kept> held;
    std::copy_if(kept_.begin(), kept_.end(), std::back_inserter(held),
                 [this](const Kept& kept) { return tuner_.steady(kept.key); });
    found_ = held;
    races_.clear();
    for (const Kept& kept : held) {
        races_.emplace_back(std::vector{kept.choice});
    }
    bool any = false;
    for (const tuning::JobCalls::Repeated& call : tuner_.repeated(kOften, 2 * iteration_)) {
        const bool known = std::any_of(kept_.begin(), kept_.end(),
                                       [&call](const Kept& kept) { return kept.key == call.key; });
        if (!known && found_.size() < tuning::kMostEntries) {
            std::vector<CollectiveChoice> candidates = tuning::ways(call, freedom());
            const auto narrower = tuning::narrower(call.key, {}, call.offer.own, freedom());
            candidates.insert(candidates.end(), narrower.begin() + 1, narrower.end());
            races_.emplace_back(candidates);
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
    next_part(State::Trying, look_rounds());
    await(propose);
}

void TuningLeader::next(State state, tuning::Order order) {
    state_ = state;
    order_ = std::move(order);
    serial_ = 0;
    since_ns_ = 0;
    tries_ = 0;
}

// What is in doubt is tried. For other kinds NCCL's own choice holds meanwhile, or what was kept
// before.
void TuningLeader::next_part(State state, std::uint32_t rounds) {
    tuning::Order order;
    order.phase = tuning::Phase::Trial;
    order.rounds = static_cast<std::uint8_t>(rounds);
    for (std::size_t i = 0; i < found_.size(); ++i) {
        std::vector<CollectiveChoice> candidates{{}};
        if (i < kept_.size() || races_[i].open()) {
            candidates = races_[i].choices();
        }
        order.entries.push_back({found_[i].key, std::move(candidates)});
    }
    next(state, std::move(order));
}

// What holds for a kind until something else is kept.
CollectiveChoice TuningLeader::before(std::size_t entry) const {
    return entry < kept_.size() ? kept_[entry].choice : CollectiveChoice{};
}

// 0: that is not known.
double TuningLeader::iteration_s() const {
    const double rate = tuner_.call_rate();
    return rate > 0 ? static_cast<double>(iteration_) / rate : 0;
}

bool TuningLeader::short_iteration() const {
    return iteration_s() < kShortIteration;
}

std::uint32_t TuningLeader::look_rounds() const {
    return short_iteration() ? tuning::kShortLookRounds : tuning::kLookRounds;
}

// A host that is iterations ahead of its device meets a window that early: most of the window has
// to lie behind.
std::uint64_t TuningLeader::window_iterations() const {
    const double iteration = iteration_s();
    if (iteration == 0) {
        return static_cast<std::uint64_t>(kMostIterations);
    }
    const double ahead = static_cast<double>(tuner_.ahead_ns()) * 1e-9 / iteration;
    const double enough = std::clamp(2 * ahead + 2, kLeastIterations, kMostIterations);
    return static_cast<std::uint64_t>(std::max(enough, kWindow / iteration) + 1);
}

// False: the council is busy, the last switch is still ahead, or another communicator has its turn.
bool TuningLeader::send(const Propose& propose) {
    if (!tuner_.may_name(order_.phase)) {
        return false;
    }
    const std::uint64_t iteration = std::max<std::uint64_t>(iteration_, 1);
    const double seconds =
        vote_s_ > 0 ? std::clamp(kVotesAhead * vote_s_, kLeastAhead, kMostAhead) : kMostAhead;
    const std::uint64_t ahead =
        kAheadIterations * iteration + static_cast<std::uint64_t>(tuner_.call_rate() * seconds) + 1;
    const bool compares = order_.phase == tuning::Phase::Compare;
    order_.window_calls = iteration * (compares ? window_iterations() : 1);
    const std::uint64_t calls = tuner_.calls();
    // All ranks should have made the call up to which they are compared. Further back with each
    // try.
    const std::uint64_t back = std::min(ahead << tries_, kFarthestBack);
    order_.mark = tuning::CallHistory::mark_before(calls - std::min(back, calls));
    if (!tuner_.history(order_.mark, order_.history)) {
        return false;
    }
    started_at_ = calls + (ahead << tries_);
    proposed_ns_ = cuda::host_now();
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
    if (since_ns_ == 0) {
        since_ns_ = cuda::host_now();
        vote_s_ = std::max(vote_s_, static_cast<double>(since_ns_ - proposed_ns_) * 1e-9);
    }
    if (state_ == State::Settling) {
        settled();
        return;
    }
    const bool over = state_ == State::Comparing ? judge() : take_times();
    if (!over && over_time()) {
        give_up("the job's calls have changed meanwhile");
    }
}

void TuningLeader::cancelled() {
    serial_ = 0;
    ++tries_;
    // Some rank may have no channels to give, or no room for connections of other algorithms.
    if (state_ == State::Trying && tries_ == kMostTries / 3) {
        channels_ = false;
        drop([](const Kept&, const CollectiveChoice& choice) { return choice.channels != 0; });
    }
    if (state_ == State::Trying && tries_ == 2 * kMostTries / 3) {
        drop([](const Kept& kept, const CollectiveChoice& choice) {
            return choice.algorithm >= 0 && choice.algorithm != kept.own.algorithm;
        });
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

// Candidates of a look that has yet to be agreed on.
void TuningLeader::drop(bool (*wrong)(const Kept& kept, const CollectiveChoice& choice)) {
    for (std::size_t i = kept_.size(); i < races_.size(); ++i) {
        std::vector<CollectiveChoice> candidates = races_[i].choices();
        std::erase_if(candidates, [&](const auto& choice) { return wrong(found_[i], choice); });
        races_[i] = tuning::Race(candidates);
        order_.entries[i].candidates = std::move(candidates);
    }
}

// Twice what the ranks wait for a trial's samples.
bool TuningLeader::over_time() const {
    const std::uint64_t most = 2 * tuning::Table::calls_of(order_);
    return tuner_.calls() > started_at_ + most || cuda::host_now() - since_ns_ > kLongest;
}

bool TuningLeader::take_times() {
    const auto times = tuner_.times(serial_);
    if (!times) {
        return false;
    }
    bool open = false;
    for (std::size_t i = 0; i < races_.size(); ++i) {
        if (order_.entries[i].candidates.size() > 1) {
            if (races_[i].begun()) {
                races_[i].take((*times)[i]);
            } else {
                races_[i].look((*times)[i]);
            }
            open = open || races_[i].open();
        }
    }
    if (open) {
        next_part(state_, short_iteration() ? tuning::kMostRounds : tuning::kRounds);
        return true;
    }
    for (std::size_t i = kept_.size(); i < races_.size(); ++i) {
        take_verdict(i);
    }
    if (state_ != State::Trying || !narrow()) {
        compare();
    }
    return true;
}

void TuningLeader::take_verdict(std::size_t entry) {
    if (!races_[entry].begun()) {
        return;
    }
    Kept& found = found_[entry];
    const bool trying = state_ == State::Trying;
    const tuning::Race::Verdict verdict = races_[entry].verdict();
    if (verdict.first_ms == 0) {  // too few times
        // One that stops while it is narrowed keeps what its trial has found.
        found.aside = trying;
        return;
    }
    found.choice = verdict.choice;
    found.own_ms = trying ? verdict.first_ms : found.own_ms;
    found.chosen_ms = verdict.chosen_ms;
}

// A way that has won is tried with fewer channels; NCCL's own has been. False: no other has won.
bool TuningLeader::narrow() {
    bool any = false;
    for (std::size_t i = 0; i < races_.size(); ++i) {
        const Kept& found = found_[i];
        std::vector<CollectiveChoice> candidates{before(i)};
        if (i >= kept_.size() && found.choice.algorithm >= 0) {
            candidates = tuning::narrower(found.key, found.choice, found.own, freedom());
        }
        any = any || candidates.size() > 1;
        races_[i] = tuning::Race(candidates);
    }
    if (any) {
        next_part(State::Narrowing, look_rounds());
    }
    return any;
}

void TuningLeader::compare() {
    tuning::Order order;
    order.phase = tuning::Phase::Compare;
    bool any = false;
    for (std::size_t i = 0; i < found_.size(); ++i) {
        order.entries.push_back({found_[i].key, {before(i), found_[i].choice}});
        any = any || before(i) != found_[i].choice;
    }
    if (!any) {
        const bool all_aside =
            std::all_of(found_.begin() + static_cast<std::ptrdiff_t>(kept_.size()), found_.end(),
                        [](const Kept& found) { return found.aside; });
        give_up(all_aside ? "the job's calls have changed meanwhile"
                          : "NCCL's own choice is the best");
        return;
    }
    ratios_.clear();
    next(State::Comparing, std::move(order));
}

bool TuningLeader::judge() {
    const std::vector<std::int64_t> begins = tuner_.window_begins(serial_);
    if (begins.empty() || begins.back() == 0) {
        return false;
    }
    const std::vector<double> ratios = tuning::ratios_of(begins);
    if (ratios.empty()) {
        give_up("the comparison's times are missing");
        return true;
    }
    ratios_.insert(ratios_.end(), ratios.begin(), ratios.end());
    const bool narrower_alone =
        std::none_of(found_.begin() + static_cast<std::ptrdiff_t>(kept_.size()), found_.end(),
                     [](const Kept& found) { return found.choice.algorithm >= 0; });
    const double windows_s = static_cast<double>(begins.back() - begins.front()) * 1e-9;
    const double iterations = static_cast<double>(tuning::kWindows * order_.window_calls) /
                              static_cast<double>(std::max<std::uint64_t>(iteration_, 1));
    const double most = windows_s < kTinyIteration * iterations ? kTinyGain
                        : narrower_alone                        ? tuning::kAboutAsLong
                                                                : tuning::kGain;
    if (!tuning::clear(ratios_, most)) {
        next(State::Comparing, order_);
        return true;
    }
    compared_ = tuning::median_of(ratios_);
    if (compared_ > most) {
        give_up("the iteration takes " + std::to_string(compared_) +
                " times as long with what is faster by itself");
        return true;
    }
    settle();
    return true;
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
