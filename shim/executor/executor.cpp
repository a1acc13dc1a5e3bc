// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/executor.h"

#include <time.h>
#include <algorithm>

#include "base/log.h"
#include "shim/executor/counters.h"
#include "shim/executor/lane_times.h"
#include "shim/executor/layer_sums.h"
#include "shim/executor/sampler.h"
#include "shim/executor/shadow.h"
#include "shim/nccl/sum_mark.h"

namespace deft::executor {
namespace {

constexpr int kLeaveSteps = 2000;  // of half a millisecond: how long stop() waits

}  // namespace

const char* to_string(BreakReason reason) {
    switch (reason) {
        case BreakReason::None:
            return "nothing";
        case BreakReason::Sequence:
            return "the sequence of gradient calls changed";
        case BreakReason::Capture:
            return "a gradient call is captured into a CUDA graph";
        case BreakReason::Error:
            return "an operation failed";
        case BreakReason::Stopped:
            return "it was ended";
        case BreakReason::Misplaced:
            return "its first call is in the middle of an iteration";
        case BreakReason::Lease:
            return "not every rank could vouch for it";
        case BreakReason::Unproven:
            return "a sum came that is not the bucket of gradients it was made for";
    }
    return "?";
}

Executor::Executor(const cuda::Execution& driver, const Nccl& nccl, int device,
                   std::vector<Lane*> lanes, Script script, const ExecutorOptions& options) noexcept
    : driver_(driver),
      nccl_(nccl),
      device_(device),
      lanes_(std::move(lanes)),
      script_(std::move(script)),
      options_(options),
      lease_(std::max(script_.plan_period, 1U), options.lease) {}

Executor::~Executor() {
    end(BreakReason::Stopped);
    if (counters_ != nullptr && shadow_ != nullptr) {
        count_dropped();
    }
    if (sums_ != nullptr) {
        sums_->release();
    }
}

std::unique_ptr<Executor> Executor::create(const cuda::Execution& driver, const Nccl& nccl,
                                           int device, std::vector<Lane*> lanes, Script script,
                                           const ExecutorOptions& options,
                                           std::string& problem) noexcept {
    try {
        problem.clear();
        const bool parts = script.series() == Series::Shards || script.halves();
        if (!nccl.complete() || (parts && !nccl.moves_shards()) || script.actions.empty()) {
            problem = "the NCCL library lacks functions that plans need";
            return nullptr;
        }
        if (!script.marks.empty() && !options.lease) {
            problem = "a plan for certain sums needs a lease";
            return nullptr;
        }
        if (script.layers && script.marks.empty()) {
            problem = "a plan under which layers wait for their own sums is for certain sums";
            return nullptr;
        }
        if (lanes.size() < script.lanes) {
            problem = "it needs " + std::to_string(script.lanes) + " lanes, there are " +
                      std::to_string(lanes.size());
            return nullptr;
        }
        for (const Lane* lane : lanes) {
            if (lane == nullptr || !lane->ready()) {
                problem = "a lane is not open";
                return nullptr;
            }
        }
        std::unique_ptr<Executor> executor(
            new Executor(driver, nccl, device, std::move(lanes), std::move(script), options));
        executor->counters_ = std::make_unique<Counters>();
        return executor->allocate(problem) ? std::move(executor) : nullptr;
    } catch (...) {
        problem = "no memory";
        return nullptr;
    }
}

// All that the script needs. May throw for want of memory.
bool Executor::allocate(std::string& problem) {
    Correlation correlation(script_);
    const std::uint64_t measured_bytes =
        options_.statistics ? Sampler::device_bytes(script_.lanes) + correlation.device_bytes() : 0;
    const std::uint32_t measured_events = options_.statistics ? Sampler::events(script_.lanes) : 0;
    shadow_ = Shadow::create(driver_, device_, script_, options_.max_shadow_bytes, measured_bytes,
                             measured_events, problem);
    if (shadow_ == nullptr) {
        return false;
    }
    for (const Lane* lane : lanes_) {
        streams_.push_back(lane->stream());
    }
    if (script_.layers) {
        std::vector<std::uint64_t> lanes_of(script_.shapes.size(), 0);
        for (const Launch& launch : script_.launches) {
            lanes_of[script_.regions[launch.region].bucket] |= std::uint64_t{1} << launch.lane;
        }
        called_.resize(script_.shapes.size());
        note_held();
        sums_ = LayerSums::create(driver_, shadow_->context(), std::move(lanes_of), script_.lanes);
        if (sums_ == nullptr) {
            problem = "the driver refuses an event";
            return false;
        }
    }
    if (!script_.layers && !lanes_.empty()) {
        const cuda::Current current(*driver_.driver, shadow_->context());
        times_ = current ? LaneTimes::create(driver_, shadow_->context(), script_) : nullptr;
    }
    if (options_.statistics) {
        // Always the same iteration of a period: others send other pieces.
        const std::uint32_t period = std::max(script_.period, 1U);
        const std::uint32_t every = (options_.complete_every + period - 1) / period * period;
        sampler_ = Sampler::create(driver_, *shadow_, script_.lanes, every, std::move(correlation),
                                   problem);
        sampling_ = sampler_ != nullptr;
    }
    return sampling_ == options_.statistics;
}

bool Executor::renew(bool switches) noexcept {
    if (!asks() && !hears()) {
        return false;
    }
    const std::uint64_t iteration = this->iteration();
    inside_.fetch_add(1);
    // Stopped: the lanes may be gone.
    const bool heard = why() != BreakReason::Stopped && ask_or_hear(iteration, switches);
    inside_.fetch_sub(1);
    return heard;
}

// True: they have said in the iterations before that all know of a switch.
bool Executor::ask_or_hear(std::uint64_t iteration, bool switches) noexcept {
    if (lease_.asks(iteration)) {
        cast(Question::Switches, lease_.word(iteration, switches));
        return false;
    }
    const Ballot::Answer answer = hear(Question::Switches);
    if (answer == Ballot::Answer::No) {
        end(BreakReason::Lease);
    }
    return answer == Ballot::Answer::Switch;
}

int Executor::cast(Question question, Ballot::Word word) noexcept {
    const int result = lanes_.front()->cast(question, word);
    if (result != DEFT_NCCL_SUCCESS) {
        failed("question to the other ranks", result);
    }
    return result;
}

// A call that does not fit the plan, by what the companion says of it. Where no rank's does, that
// is a matter of the program (averaged parameters), so all ranks end the plan before the call: each
// of them waits here for the answer. Where another rank's fits, this rank may be alone, and a plan
// that ended here alone would leave the others waiting in its transfers. Then all end together a
// little later.
bool Executor::any_rank_fits(bool fits) noexcept {
    inside_.fetch_add(1);
    using Word = Ballot::Word;
    if (why() != BreakReason::Stopped &&
        cast(Question::Unfit, fits ? Word::No : Word::Yes) == DEFT_NCCL_SUCCESS && !fits) {
        const Ballot::Answer answer = hear(Question::Unfit);
        if (answer == Ballot::Answer::Yes) {
            break_off(BreakReason::Unproven);
        } else if (answer == Ballot::Answer::No) {
            lease_.withhold();
        }
    }
    inside_.fetch_sub(1);
    return !broken();
}

// Waits for the answer. Failed or Pending: it does not come, and the plan has ended. A job that had
// called NCCL would see by the communicator's error that a rank is lost; here it waits in deft,
// which has to look.
Ballot::Answer Executor::hear(Question question) noexcept {
    using Answer = Ballot::Answer;
    Lane& lane = *lanes_.front();
    Answer answer = Answer::Pending;
    while ((answer = lane.answer(question)) == Answer::Pending && why() != BreakReason::Stopped) {
        const timespec pause{0, 100'000};
        ::nanosleep(&pause, nullptr);
    }
    if (answer == Answer::Failed) {
        if (const int error = lane.error(); error != DEFT_NCCL_SUCCESS) {
            failed("question to the other ranks", error);
        } else {
            refused("answer of the other ranks");
        }
    }
    return answer;
}

void Executor::vouch(std::int64_t until_ns) noexcept {
    lease_.vouch(until_ns);
}

bool Executor::vouched() const noexcept {
    return lease_.vouched();
}

bool Executor::withheld() const noexcept {
    return lease_.withheld();
}

// The companion says of the call what it says of the plan's. One that has failed in this rank says
// nothing, but of sums that are left to it.
bool Executor::fits(std::uint64_t mark, std::uint32_t position) const noexcept {
    return script_.marks.empty() || mark == script_.marks[position] ||
           (marks_ended() && !script_.layers);
}

const Action* Executor::begin_call(const Call& call, cuda::Stream stream) noexcept {
    if (broken()) {
        return nullptr;
    }
    const std::uint32_t position = position_.load(std::memory_order_relaxed);
    const std::uint64_t iteration = iteration_.load(std::memory_order_relaxed);
    const Shape& expected = script_.shapes[position];
    // Where the buffers lie may change from call to call and differs between ranks; whether they
    // are one is a matter of the job's program.
    const int rank = lanes_.empty() ? -1 : lanes_.front()->rank();
    if (call.function != expected.function || call.count != expected.count ||
        call.type != expected.type || call.op != expected.op ||
        is_in_place(call, rank) != expected.in_place) {
        break_off(BreakReason::Sequence);
        return nullptr;
    }
    bool captured = false;
    if (!cuda::recordable(*driver_.driver, stream, captured) && captured) {
        break_off(BreakReason::Capture);
        return nullptr;
    }
    const bool fitting = fits(call.mark, position);
    if (asks_of(position) && !any_rank_fits(fitting)) {
        return nullptr;
    }
    if (position == 0) {
        Counters::add(counters_->iterations);
        if (sampling_) {
            sampler_->begin(iteration);
        }
    } else if (!fitting) {
        lease_.withhold();  // the iteration has begun on all ranks
    }
    running_ = iteration;
    const bool wraps = position + 1 == script_.shapes.size();
    position_.store(wraps ? 0 : position + 1, std::memory_order_relaxed);
    iteration_.store(iteration + (wraps ? 1 : 0), std::memory_order_relaxed);
    const Action& action = script_.action(iteration, position);
    if (action.forward && action.nothing()) {
        Counters::add(counters_->forwarded);
        if (wraps) {
            end_iteration();
        }
        return nullptr;
    }
    return &action;
}

bool Executor::all_reduce(const Call& call, cuda::Stream stream, int& result) noexcept {
    const Action* const action = begin_call(call, stream);
    if (action == nullptr) {
        return false;
    }
    const int ran = execute(*action, call, stream);
    if (ran == kForward) {
        return false;
    }
    result = ran;
    return !(action->forward && ran == DEFT_NCCL_SUCCESS);
}

int Executor::execute(const Action& action, const Call& call, cuda::Stream stream) noexcept {
    inside_.fetch_add(1);
    int result = DEFT_NCCL_SUCCESS;
    if (why() == BreakReason::Stopped) {
        // Ended between begin_call() and here: the buffers may be read, but not by us any more.
        result = DEFT_NCCL_INVALID_USAGE;
    } else {
        const cuda::Current current(*driver_.driver, shadow_->context());
        progress_ = {};
        progress_.delivered = action.deliver;
        progress_.zeroed = action.zero;
        result = current ? carry_out(action, call, stream) : refused("context");
        if (result == kForward && progress_.launched) {
            result = carry_through(action, call);
        }
        Counters::add(action.forward ? counters_->forwarded : counters_->executed);
    }
    inside_.fetch_sub(1);
    return result;
}

std::uint32_t Executor::bucket_of(const Action& action) const noexcept {
    return static_cast<std::uint32_t>(static_cast<std::size_t>(&action - script_.actions.data()) %
                                      script_.shapes.size());
}

int Executor::carry_out(const Action& action, const Call& call, cuda::Stream stream) noexcept {
    const std::uint32_t bucket = bucket_of(action);
    if (!takes_events(stream, shadow_->ready(bucket))) {
        return refused("event on the stream of the call");
    }
    // Calls on one bucket are ordered even if the job changes streams between them.
    if (driver_.StreamWaitEvent(stream, shadow_->done(bucket), 0) != cuda::kSuccess) {
        return refused("wait for the last call");
    }
    if (script_.layers) {
        if (running_ > 0 && sums_->wait(bucket, running_, stream) != LayerSums::Wait::Waits) {
            return refused("wait for the last sum");
        }
        called_[bucket] = call;
    }
    if (const int result = accumulate(action, call, stream); result != DEFT_NCCL_SUCCESS) {
        return result;
    }
    if (driver_.driver->EventRecord(shadow_->ready(bucket), stream) != cuda::kSuccess) {
        return refused("event on the stream of the call");
    }
    if (const int result = launch(action, call, stream); result != DEFT_NCCL_SUCCESS) {
        return result;
    }
    if (const int result = deliver(action, call, stream); result != DEFT_NCCL_SUCCESS) {
        return result;
    }
    if (driver_.driver->EventRecord(shadow_->done(bucket), stream) != cuda::kSuccess) {
        refused("last event");  // the call itself is complete
    }
    if (bucket + 1 == script_.shapes.size()) {
        end_iteration();
    }
    return script_.layers ? leave(call, bucket, stream) : DEFT_NCCL_SUCCESS;
}

// Not a stream of another context. Asked when the job changes streams, before a copy is put there:
// no event could tell when the shadow memory is free of it.
bool Executor::takes_events(cuda::Stream stream, cuda::Event event) noexcept {
    if (!stream_known_ || stream != stream_) {
        stream_known_ = driver_.driver->EventRecord(event, stream) == cuda::kSuccess;
        stream_ = stream;
    }
    return stream_known_;
}

// Asks until the answer is another one. False: the device refuses, or the plan was ended from
// outside (an abort).
template <class Ask>
bool Executor::over(Ask ask) const noexcept {
    int state = cuda::kNotReady;
    while ((state = ask()) == cuda::kNotReady && why() != BreakReason::Stopped) {
        const timespec pause{0, 100'000};
        ::nanosleep(&pause, nullptr);
    }
    return state == cuda::kSuccess;
}

bool Executor::idle(cuda::Stream stream) const noexcept {
    return over([&] { return driver_.StreamQuery(stream); });
}

bool Executor::happened(cuda::Event event) const noexcept {
    return over([&] { return driver_.driver->EventQuery(event); });
}

// The job's stream does not take what the plan needs, and the transfers cannot be taken back: the
// other ranks are in them. So this thread waits, once, and delivers on a stream of deft's own.
int Executor::carry_through(const Action& action, const Call& call) noexcept {
    for (const cuda::Stream lane : streams_) {
        if (!idle(lane)) {
            return kForward;  // the device is lost; NCCL will say so
        }
    }
    if (script_.layers && held_[bucket_of(action)]) {
        return failed("sum", DEFT_NCCL_INTERNAL_ERROR);  // later calls were to send the rest
    }
    const cuda::Stream own = shadow_->stream();
    return deliver(action, call, own) == DEFT_NCCL_SUCCESS && idle(own) ? DEFT_NCCL_SUCCESS
                                                                        : kForward;
}

void Executor::end_iteration() noexcept {
    if (!sampling_) {
        return;
    }
    const cuda::Current current(*driver_.driver, shadow_->context());
    if (!current || sampler_->end(streams_) != cuda::kSuccess) {
        stop_sampling();
    }
}

// The sums are right without it.
void Executor::stop_sampling() noexcept {
    sampling_ = false;
    DEFT_WARN("the norms of this communicator's gradients cannot be measured any more");
}

// An error of NCCL's, in a transfer.
int Executor::failed(const char* what, int result) noexcept {
    DEFT_WARN("a gradient's %s failed (%s); the plan ends here", what, nccl_.text(result));
    end(BreakReason::Error);
    return result;
}

// An error of the driver's.
int Executor::refused(const char* what) noexcept {
    if (!broken()) {
        DEFT_WARN(
            "CUDA refuses what a plan needs (%s); the plan ends here, and NCCL carries the calls "
            "of this communicator from now on",
            what);
    }
    end(BreakReason::Error);
    return kForward;
}

void Executor::end(BreakReason reason) noexcept {
    std::uint8_t none = 0;
    if (why_.compare_exchange_strong(none, static_cast<std::uint8_t>(reason)) &&
        reason != BreakReason::Stopped) {
        DEFT_INFO("the plan ends in iteration %llu: %s",
                  static_cast<unsigned long long>(iteration_.load()), to_string(reason));
    } else if (reason == BreakReason::Stopped) {
        why_.store(static_cast<std::uint8_t>(reason));
    }
    if (sums_ != nullptr) {
        sums_->lose();
    }
}

bool Executor::stop() noexcept {
    end(BreakReason::Stopped);
    for (int i = 0; i < kLeaveSteps && inside_.load() > 0; ++i) {
        const timespec pause{0, 500'000};
        ::nanosleep(&pause, nullptr);
    }
    return inside_.load() == 0;
}

std::uint64_t Executor::in_flight() const noexcept {
    std::uint64_t undelivered = 0;
    for (std::uint32_t s = 0; s < shadow_->slots(); ++s) {
        const SlotState state = shadow_->slot(s).state;
        undelivered += state == SlotState::Filling || state == SlotState::Sent ? 1 : 0;
    }
    return undelivered;
}

void Executor::count_dropped() noexcept {
    for (std::uint64_t left = in_flight(); left > 0; --left) {
        Counters::add(counters_->dropped);
    }
}

ExecutorStats Executor::stats() const noexcept {
    ExecutorStats stats;
    stats.iterations = counters_->iterations;
    stats.executed = counters_->executed;
    stats.forwarded = counters_->forwarded;
    stats.launched = counters_->launched;
    stats.launched_bytes = counters_->launched_bytes;
    for (std::size_t i = 0; i < ExecutorStats::kLanes; ++i) {
        stats.lane_bytes[i] = counters_->lane_bytes[i];
    }
    stats.delivered = counters_->delivered;
    stats.predicted = counters_->predicted;
    stats.zeroed = counters_->zeroed;
    stats.dropped = counters_->dropped;
    stats.shadow_bytes = script_.shadow_bytes;
    return stats;
}

std::uint64_t Executor::empty() const noexcept {
    return counters_->empty.load(std::memory_order_relaxed);
}

bool Executor::take(Statistics& statistics) noexcept {
    if (sampler_ == nullptr || !sampler_->take(statistics)) {
        return false;
    }
    if (script_.shapes.front().op == DEFT_NCCL_AVG) {  // as sums, whatever the job asked for
        const double ranks = lanes_.empty() ? 1 : lanes_.front()->nranks();
        statistics.reduced_square *= ranks * ranks;
    }
    return true;
}

}  // namespace deft::executor
