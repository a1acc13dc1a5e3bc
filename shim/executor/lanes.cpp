// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/lanes.h"

#include <time.h>
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "shim/executor/lane_config.h"

namespace deft::executor {
namespace {

using Clock = std::chrono::steady_clock;

void nap(long nanoseconds = 500'000) {
    const timespec pause{0, nanoseconds};
    ::nanosleep(&pause, nullptr);
}

}  // namespace

const char* to_string(LaneState state) {
    switch (state) {
        case LaneState::Idle:
            return "idle";
        case LaneState::Opening:
            return "opening";
        case LaneState::Ready:
            return "ready";
        case LaneState::Failed:
            return "failed";
        case LaneState::Aborted:
            return "aborted";
        case LaneState::Closed:
            return "closed";
    }
    return "?";
}

// ncclCommInitRankConfig waits until all ranks have come, for ever if one does not. So a thread of
// its own waits there, and open() stops waiting for that thread when it wants. Whoever comes last
// ends a communicator that nobody wants any more.
struct Lane::Opening {
    Nccl nccl;
    const cuda::Execution* driver = nullptr;
    cuda::Context context = nullptr;
    deft_nccl_unique_id_t id{};
    int nranks = 0;
    int rank = 0;
    ConfigBytes config;
    bool configured = false;
    std::string net_name;

    Mutex mutex;
    bool finished DEFT_GUARDED_BY(mutex) = false;
    bool unwanted DEFT_GUARDED_BY(mutex) = false;
    int result DEFT_GUARDED_BY(mutex) = 0;
    // The thread's until it has finished. NCCL sets it before it starts to wait, so that it can be
    // aborted from elsewhere.
    deft_nccl_comm_t comm = nullptr;

    static void* run(void* argument) {
        const std::unique_ptr<std::shared_ptr<Opening>> own(
            static_cast<std::shared_ptr<Opening>*>(argument));
        Opening& self = **own;
        int result = DEFT_NCCL_UNHANDLED_CUDA_ERROR;
        {
            const cuda::Current current(*self.driver->driver, self.context);
            const cuda::Relaxed relaxed(*self.driver->driver);  // NCCL allocates
            if (current) {
                result = self.configured
                             ? self.nccl.CommInitRankConfig(&self.comm, self.nranks, self.id,
                                                            self.rank, self.config.get())
                             : self.nccl.CommInitRank(&self.comm, self.nranks, self.id, self.rank);
            }
        }
        bool abort = false;
        {
            const MutexLock lock(self.mutex);
            self.result = result;
            self.finished = true;
            // In progress: something has made it nonblocking, and nobody will ask when it is done.
            abort =
                (self.unwanted && result == DEFT_NCCL_SUCCESS) || result == DEFT_NCCL_IN_PROGRESS;
        }
        if (abort) {
            self.nccl.CommAbort(self.comm);
        }
        return nullptr;
    }

    static bool start(const std::shared_ptr<Opening>& opening) {
        auto* const argument = new std::shared_ptr<Opening>(opening);
        if (start_thread("deft-lane", 0, run, argument) != 0) {
            delete argument;
            return false;
        }
        return true;
    }
};

Lane::Lane(const Nccl& nccl, const cuda::Execution& driver, int device) noexcept
    : nccl_(nccl), driver_(driver), device_(device) {}

Lane::~Lane() {
    for (std::unique_ptr<Ballot>& ballot : ballots_) {
        if (ballot != nullptr) {
            ballot->abandon();
        }
    }
}

bool Lane::failed(std::string& problem, const char* step, int result) noexcept {
    try {
        result = result != DEFT_NCCL_SUCCESS ? result : error();
        timed_out_.store(result == DEFT_NCCL_SUCCESS && !stop_);
        problem = std::string(step) + (stop_         ? " was aborted"
                                       : result != 0 ? std::string(": ") + nccl_.text(result)
                                                     : std::string(" took too long"));
    } catch (...) {
    }
    LaneState opening = LaneState::Opening;
    state_.compare_exchange_strong(opening, stop_ ? LaneState::Aborted : LaneState::Failed);
    return false;
}

bool Lane::open(const deft_nccl_unique_id_t& id, int nranks, int rank, const LaneConfig& config,
                std::string& problem) noexcept {
    LaneState idle = LaneState::Idle;
    if (!state_.compare_exchange_strong(idle, LaneState::Opening)) {
        return failed(problem, "a lane that was opened before", DEFT_NCCL_INVALID_USAGE);
    }
    try {
        config_ = config;
        nranks_ = nranks;
        rank_ = rank;
        context_ = cuda::primary_context(*driver_.driver, device_);
        const auto opening = std::make_shared<Opening>();
        opening->nccl = nccl_;
        opening->driver = &driver_;
        opening->context = context_;
        opening->id = id;
        opening->nranks = nranks;
        opening->rank = rank;
        LaneConfig own = config;
        if (config.net_name != nullptr) {
            opening->net_name = config.net_name;  // must live as long as the thread
            own.net_name = opening->net_name.c_str();
            config_.net_name = nullptr;
        }
        opening->configured =
            nccl_.CommInitRankConfig != nullptr && make_config(nccl_.version, own, opening->config);
        {
            const cuda::Current current(*driver_.driver, context_);
            if (context_ == nullptr || !current ||
                driver_.StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking,
                                                 config.priority) != cuda::kSuccess) {
                stream_ = nullptr;
                return failed(problem, "its stream", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
            }
        }
        if (!Opening::start(opening)) {
            return failed(problem, "its thread", DEFT_NCCL_SYSTEM_ERROR);
        }
        if (!await(*opening, Clock::now() + config.deadline, problem)) {
            return false;
        }
        if (!make_ballots()) {
            abort();
            return failed(problem, "its memory", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
        }
        LaneState expected = LaneState::Opening;
        if (!state_.compare_exchange_strong(expected, LaneState::Ready) || stop_.load()) {
            abort();  // an abort() in between may not have seen the communicator
            return failed(problem, "its communicator", 0);
        }
        return true;
    } catch (...) {
        return failed(problem, "its memory", DEFT_NCCL_SYSTEM_ERROR);
    }
}

bool Lane::make_ballots() {
    const cuda::Current current(*driver_.driver, context_);
    const cuda::Relaxed relaxed(*driver_.driver);
    for (std::unique_ptr<Ballot>& ballot : ballots_) {
        ballot = Ballot::create(driver_, context_, stream_);
    }
    return ballots_[0] != nullptr && ballots_[1] != nullptr;
}

// True: the thread has made the communicator.
bool Lane::await(Opening& opening, Clock::time_point until, std::string& problem) {
    for (;;) {
        bool given_up = false;
        {
            const MutexLock lock(opening.mutex);
            if (opening.finished) {
                if (opening.result != DEFT_NCCL_SUCCESS) {
                    return failed(problem, "its communicator", opening.result);
                }
                comm_.store(opening.comm, std::memory_order_release);
                return true;
            }
            if (stop_.load() || Clock::now() >= until) {
                opening.unwanted = given_up = true;
            }
        }
        if (given_up) {
            // Not aborted from here: in a blocking initialisation NCCL frees the communicator
            // itself when it fails. The thread ends it, or waits in NCCL for the others.
            return failed(problem, "its communicator", 0);
        }
        nap();
    }
}

void Lane::abort() noexcept {
    aborting_.fetch_add(1);
    stop_.store(true);
    const deft_nccl_comm_t comm = comm_.exchange(nullptr);
    if (comm != nullptr) {
        // Others that are using it leave in a moment; one that is stuck inside NCCL is released by
        // the abort.
        const auto until = Clock::now() + std::chrono::seconds(1);
        while (users_.load() > 0 && Clock::now() < until) {
            nap();
        }
        nccl_.CommAbort(comm);
    }
    LaneState state = state_.load();
    while (state != LaneState::Closed && state != LaneState::Aborted &&
           !state_.compare_exchange_weak(state, LaneState::Aborted)) {
    }
    aborting_.fetch_sub(1);
}

bool Lane::idle() const noexcept {
    const cuda::Current current(*driver_.driver, context_);
    const cuda::Relaxed relaxed(*driver_.driver);
    return stream_ == nullptr || !current || driver_.StreamQuery(stream_) != cuda::kNotReady;
}

bool Lane::busy() noexcept {
    users_.fetch_add(1);  // the stream is destroyed after the communicator, which waits for these
    bool busy = false;
    if (comm() != nullptr) {
        const cuda::Current current(*driver_.driver, context_);
        const cuda::Relaxed relaxed(*driver_.driver);
        busy = stream_ != nullptr && current && driver_.StreamQuery(stream_) == cuda::kNotReady;
    }
    users_.fetch_sub(1);
    return busy;
}

void Lane::disconnect() noexcept {
    const deft_nccl_comm_t comm = comm_.exchange(nullptr);
    state_.store(LaneState::Closed);
    const cuda::Current current(*driver_.driver, context_);
    while (users_.load() > 0) {
        nap();  // asked for its error at this moment, or released by an abort
    }
    if (comm != nullptr) {
        const int result = nccl_.CommDestroy(comm);
        if (result != DEFT_NCCL_SUCCESS) {
            DEFT_WARN("a lane's communicator cannot be destroyed: %s", nccl_.text(result));
        }
    }
    if (stream_ != nullptr && current) {
        driver_.StreamDestroy(stream_);
        stream_ = nullptr;
    }
}

// What the lane was given last may wait for a peer that is gone. ncclCommDestroy would wait with
// it, out of reach: an abort has to find the communicator still here.
bool Lane::stands_still() noexcept {
    return busy() && (stop_.load() || error() != DEFT_NCCL_SUCCESS ||
                      casts_alone(Ballot::kLongest, Ballot::kUnmarked));
}

void Lane::drain() noexcept {
    const cuda::Current current(*driver_.driver, context_);
    const cuda::Relaxed relaxed(*driver_.driver);
    while (comm() != nullptr && stream_ != nullptr && current &&
           driver_.StreamQuery(stream_) == cuda::kNotReady) {
        if (stands_still()) {
            abort();
        } else {
            nap();
        }
    }
    while (aborting_.load() > 0) {
        nap();  // another thread ends the communicator, and may still use the stream
    }
}

void Lane::close() noexcept {
    drain();
    const cuda::Current current(*driver_.driver, context_);
    const cuda::Relaxed relaxed(*driver_.driver);
    const bool idle =
        stream_ == nullptr || (current && driver_.StreamQuery(stream_) == cuda::kSuccess);
    drop_trials(idle);
    disconnect();
    if (current) {
        for (std::unique_ptr<Ballot>& ballot : ballots_) {
            ballot.reset();
        }
    }
}

// As long as it is not aborted: an abort waits for whoever is inside.
template <class Result, class Do>
Result Lane::with_ballot(Question question, Result otherwise, Do&& what) noexcept {
    users_.fetch_add(1);
    Result result = otherwise;
    if (comm() != nullptr && !stop_.load()) {
        Ballot* const ballot = ballots_[static_cast<std::size_t>(question)].get();
        const cuda::Current current(*driver_.driver, context_);
        const cuda::Relaxed relaxed(*driver_.driver);
        if (ballot != nullptr && current) {
            result = what(*ballot);
        }
    }
    users_.fetch_sub(1);
    return result;
}

int Lane::cast(Question question, Ballot::Word word) noexcept {
    // Whether a call fits is asked in every iteration, and the answer is seldom looked at.
    const Ballot::Copy copy =
        question == Question::Unfit ? Ballot::Copy::OnDemand : Ballot::Copy::AtOnce;
    asked_.store(true, std::memory_order_relaxed);
    return with_ballot(question, int{DEFT_NCCL_INVALID_USAGE}, [&](Ballot& ballot) {
        return ballot.cast(nccl_, comm(), stream_, word, copy);
    });
}

Ballot::Answer Lane::answer(Question question) noexcept {
    const Ballot::Answer answer =
        with_ballot(question, Ballot::Answer::Failed,
                    [this](Ballot& ballot) { return ballot.answer(stream_); });
    return answer == Ballot::Answer::Pending && error() != DEFT_NCCL_SUCCESS
               ? Ballot::Answer::Failed
               : answer;
}

void Lane::doubt_cast() noexcept {
    with_ballot(Question::Switches, false, [](Ballot& ballot) {
        ballot.doubt();
        return true;
    });
}

void Lane::mark_cast(cuda::Stream job) noexcept {
    with_ballot(Question::Switches, false, [job](Ballot& ballot) {
        ballot.mark(job);
        return true;
    });
}

bool Lane::casts_in_doubt() noexcept {
    return with_ballot(Question::Switches, false, [](Ballot& ballot) { return ballot.doubted(); });
}

bool Lane::casts_alone(std::int64_t longest, std::int64_t unmarked) noexcept {
    return with_ballot(Question::Switches, false,
                       [=](Ballot& ballot) { return ballot.alone(longest, unmarked); });
}

int Lane::error() noexcept {
    const int error = async_error();
    return error == DEFT_NCCL_IN_PROGRESS ? DEFT_NCCL_SUCCESS : error;
}

int Lane::async_error() noexcept {
    if (nccl_.CommGetAsyncError == nullptr) {
        return DEFT_NCCL_SUCCESS;
    }
    users_.fetch_add(1);
    const deft_nccl_comm_t comm = this->comm();
    int error = DEFT_NCCL_SUCCESS;
    if (comm != nullptr && nccl_.CommGetAsyncError(comm, &error) != DEFT_NCCL_SUCCESS) {
        error = DEFT_NCCL_INTERNAL_ERROR;
    }
    users_.fetch_sub(1);
    return error;
}

}  // namespace deft::executor
