// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/background_thread.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/config.h"
#include "base/fork_guard.h"
#include "base/job_folder.h"
#include "base/log.h"
#include "base/thread.h"
#include "shim/control/directors.h"
#include "shim/control/kill_switch.h"
#include "shim/runtime/file_thread.h"
#include "shim/runtime/job_line.h"
#include "shim/runtime/metrics.h"
#include "shim/runtime/metrics_folder.h"
#include "shim/settings/mode.h"
#include "shim/settings/settings.h"

namespace deft {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
// A short job's record is there soon, and a long one's does not busy its folder.
constexpr std::int64_t kFirstReport = 3'000 * kMillisecond;
constexpr std::int64_t kReportEvery = 60'000 * kMillisecond;
constexpr std::int64_t kReportRetry = 1'000 * kMillisecond;  // another rank had the file locked
// The thread looks often while something is happening and seldom while nothing is.
constexpr std::int64_t kPollBusy = 5 * kMillisecond;
constexpr std::int64_t kPollCalls = 20 * kMillisecond;
constexpr std::int64_t kPollIdle = 250 * kMillisecond;
constexpr std::int64_t kExitDeadline = 1'000 * kMillisecond;
constexpr std::chrono::milliseconds kFilesPatience{300};

std::array<std::atomic<std::uint64_t>, kFunctions> g_calls;
std::atomic<std::uint64_t> g_captured{0};
std::atomic<BackgroundThread*> g_running{nullptr};

std::chrono::steady_clock::time_point deadline_in(std::int64_t nanoseconds) {
    return std::chrono::steady_clock::now() + std::chrono::nanoseconds(nanoseconds);
}

}  // namespace

void BackgroundThread::count(Function function) noexcept {
    g_calls[static_cast<std::size_t>(function)].fetch_add(1, std::memory_order_relaxed);
}

void BackgroundThread::count_captured() noexcept {
    g_captured.fetch_add(1, std::memory_order_relaxed);
}

BackgroundThread* BackgroundThread::running() noexcept {
    return g_running.load(std::memory_order_acquire);
}

bool BackgroundThread::start() noexcept {
    static std::atomic<int> state{0};  // 0 not started, 1 starting, 2 running, 3 failed
    int fresh = 0;
    if (!state.compare_exchange_strong(fresh, 1)) {
        return fresh != 3;
    }
    const char* step = "memory";
    int error = ENOMEM;
    note_job_folder();
    try {
        ForkGuard::process().arm();
        // Never freed: threads may use it to the very end. "new BackgroundThread()" would fill the
        // ring of calls with zeros first.
        auto* const background = new BackgroundThread;
        // Where plans are made NCCL and the compiler of the kernels run on it.
        const std::size_t stack = plans(shim_mode()) ? 0 : 512 * 1024;
        error = start_thread("deft-observe", stack, thread_main, background);
        step = "its thread";
        if (error == 0) {
            g_running.store(background, std::memory_order_release);
            ::atexit([] { at_exit(); });
            if (plans(shim_mode()) || !Config::process().text(Key::Metrics).empty()) {
                FileThread::start();
            }
            state = 2;
            return true;
        }
    } catch (...) {
    }
    state = 3;
    DEFT_WARN("the shim cannot start: no %s (%s); every call is forwarded as in mode off", step,
              std::strerror(error));
    return false;
}

void BackgroundThread::know(const Communicator& communicator) noexcept {
    CommunicatorFacts facts;
    facts.serial = communicator.serial;
    facts.hash = communicator.hash;
    facts.rank = communicator.rank;
    facts.nranks = communicator.nranks;
    facts.device = communicator.device;
    try {
        const Monitor::Lock lock(monitor_);
        for (const CommunicatorFacts& known : communicators_) {
            if (known.serial == facts.serial) {
                return;
            }
        }
        constexpr std::size_t kListed = 256;  // jobs that make communicators without end
        if (communicators_.size() < kListed) {
            communicators_.push_back(facts);
        }
    } catch (...) {
    }
}

void BackgroundThread::request_report() noexcept {
    Monitor::Lock lock(monitor_);
    report_wanted_ = true;
    lock.notify();
}

void* BackgroundThread::thread_main(void* self) noexcept {
    auto* const background = static_cast<BackgroundThread*>(self);
    try {
        background->run();
    } catch (...) {
        DEFT_WARN_ONCE("observe stopped: out of memory");
    }
    Monitor::Lock lock(background->monitor_);
    background->finished_ = true;
    lock.notify();
    return nullptr;
}

void BackgroundThread::run() {
    bool relaxed = false;
    std::int64_t last_report = 0;
    std::int64_t next_report = cuda::host_now() + kFirstReport;
    const std::int64_t metrics_every = Config::process().duration(Key::MetricsInterval).count();
    std::int64_t next_metrics = cuda::host_now() + std::min(metrics_every, kFirstReport);
    std::int64_t pause = kPollCalls;
    if (Config::process().flag(Key::Top)) {
        live_.open();
    }
    for (;;) {
        bool wanted = false;
        {
            Monitor::Lock lock(monitor_);
            const auto until = deadline_in(pause);
            while (!stop_ && !report_wanted_ && lock.wait_until(until)) {
            }
            if (stop_) {
                return;
            }
            wanted = report_wanted_;
            report_wanted_ = false;
        }
        const bool calls = drain();
        // Asking for a driver that is not there reads files: only where a call has told a device.
        const cuda::Driver* const driver =
            ranks_.empty() ? cuda::Driver::found() : cuda::Driver::get();
        if (!relaxed && driver != nullptr) {
            // Queries and creations here must never invalidate a capture of the job.
            int mode = cuda::kCaptureModeRelaxed;
            driver->ThreadExchangeStreamCaptureMode(&mode);
            relaxed = true;
        }
        bool busy = false;
        director::clean_up();
        for (auto& [device, rank] : ranks_) {
            busy = resolve(device, rank) || busy;
            busy = resolve_trials(device, rank) || busy;
            open_window(device, rank);
            busy = director::tick(device, rank.track, rank.seen) || busy;
            rank.seen.clear();
        }
        const std::int64_t now = cuda::host_now();
        links_.look(now);
        if (wanted) {
            // At once, but not for each communicator of a job that drops many.
            next_report = std::min(next_report, last_report + kFirstReport);
        }
        if (now >= next_report) {
            last_report = now;
            next_report = now + (report(false) ? kReportEvery : kReportRetry);
        }
        if (live_.wanted(now)) {
            show(now);
        }
        if (now >= next_metrics) {
            put_metrics();
            next_metrics = now + metrics_every;
        }
        pause = busy ? kPollBusy : calls ? kPollCalls : std::min(2 * pause, kPollIdle);
    }
}

// Takes the calls that have come in; true if there were any.
bool BackgroundThread::drain() {
    const std::uint64_t lost = ring_.lost();
    CallRecord record;
    bool any = false;
    while (ring_.pop(record)) {
        Rank& rank = ranks_[record.device];
        see(rank, record);
        rank.track.feed(record);
        any = true;
    }
    if (lost != lost_seen_) {
        lost_seen_ = lost;
        for (auto& [device, rank] : ranks_) {
            rank.track.lost_calls();
        }
    }
    return any;
}

// A call that may be tuned. The pair that times one of a trial is no business of the track's: its
// time tells nothing of the job as it is.
void BackgroundThread::see(Rank& rank, CallRecord& record) {
    if (record.tuned == CallRecord::kNoOrdinal) {
        return;
    }
    tuning::SeenCall seen;
    seen.serial = record.comm_serial;
    seen.ordinal = record.tuned;
    seen.key = tuning::key_of(record.function, record.count, record.type, record.op);
    seen.offer = record.offer;
    seen.order = record.order;
    seen.entry = record.entry;
    seen.sample = record.sample;
    seen.issued_ns = record.issued_ns;
    if (record.sample >= 0 && record.events >= 0) {
        rank.trials.emplace_back(seen, record.events);
        record.events = -1;
    } else {
        rank.seen.push_back(seen);
    }
}

std::vector<CommunicatorFacts> BackgroundThread::communicators() {
    std::vector<CommunicatorFacts> communicators;
    {
        const Monitor::Lock lock(monitor_);
        communicators = communicators_;
    }
    for (const CommunicatorFacts& comm : communicators) {
        ranks_[comm.device];  // a rank that has made no call yet has a report too
    }
    return communicators;
}

// Calls whose device is not known are no rank of the job where others are.
bool BackgroundThread::is_rank(const ReportFacts& facts) const {
    return !facts.communicators.empty() || ranks_.size() == 1;
}

// False: not all of them could be written yet. Who has waited for the lock once waits no more.
bool BackgroundThread::report(bool final_report) {
    if (!keeps_records()) {
        return true;
    }
    const std::vector<CommunicatorFacts> known = communicators();
    for (auto& [device, rank] : ranks_) {
        ReportFacts facts = facts_of(device, rank, known);
        facts.final_report = final_report;
        if (is_rank(facts) && !rank.record.put(facts, &rank.track)) {
            return false;
        }
    }
    return true;
}

// To whoever looks at the process.
void BackgroundThread::show(std::int64_t now) {
    const std::vector<CommunicatorFacts> known = communicators();
    std::string snapshot;
    for (const auto& [device, rank] : ranks_) {
        const ReportFacts facts = facts_of(device, rank, known);
        snapshot += is_rank(facts) ? make_report(facts, &rank.track) : "";
    }
    live_.give(snapshot, now);
}

// One line, of the process that has rank 0, for whoever asks whether it helped.
void BackgroundThread::say_job_line() {
    if (!log::enabled(log::Level::Info)) {
        return;
    }
    std::vector<CommunicatorFacts> communicators;
    {
        const Monitor::Lock lock(monitor_);
        communicators = communicators_;
    }
    for (const auto& [device, rank] : ranks_) {
        const ReportFacts facts = facts_of(device, rank, communicators);
        if (facts.ranks > 0 && facts.rank == 0) {
            DEFT_INFO("%s", job_line(facts, &rank.track).c_str());
            return;
        }
    }
}

ReportFacts BackgroundThread::facts_of(int device, const Rank& rank,
                                       const std::vector<CommunicatorFacts>& communicators) const {
    ReportFacts facts = process_facts();
    for (const CommunicatorFacts& comm : communicators) {
        if (comm.device == device) {
            facts.communicators.push_back(comm);
        }
    }
    // The rank in the largest communicator names the file; the first of several.
    for (const CommunicatorFacts& comm : facts.communicators) {
        if (comm.nranks > facts.ranks) {
            facts.rank = comm.rank;
            facts.ranks = comm.nranks;
        }
    }
    facts.plans = director::facts(device);
    for (std::size_t i = 0; i < kFunctions; ++i) {
        facts.calls[i] = g_calls[i].load(std::memory_order_relaxed);
    }
    facts.link_history = &links_;
    facts.captured_calls = g_captured.load(std::memory_order_relaxed);
    facts.lost_calls = ring_.lost();
    facts.timed_calls = rank.timed;
    facts.events_note = device < 0       ? "the communicators' device is not known"
                        : rank.no_events ? "CUDA events are not available"
                                         : "";
    return facts;
}

// Hands them to the thread that may wait for files.
void BackgroundThread::put_metrics() {
    const std::string& folder = Config::process().text(Key::Metrics);
    FileThread* const files = FileThread::running();
    if (folder.empty() || files == nullptr) {
        return;
    }
    MetricsFacts more;
    more.job_id = Config::process().job_id();
    more.killed = director::KillSwitch::process().pulled() != nullptr;
    const std::vector<CommunicatorFacts> known = communicators();
    for (auto& [device, rank] : ranks_) {
        const ReportFacts facts = facts_of(device, rank, known);
        if (!is_rank(facts)) {
            continue;
        }
        const std::string path = in_job_folder(metrics_path(folder, facts.rank));
        if (!rank.metrics_path.empty() && rank.metrics_path != path) {
            files->put(rank.metrics_path, "");
        }
        rank.metrics_path = path;
        files->put(path, metrics_text(facts, &rank.track, more));
        more.links = false;  // the process's, once
    }
}

// Runs inside exit(), before the libraries' own ends. Stops the thread, so that nothing of ours
// calls CUDA any more, and writes what is known.
void BackgroundThread::at_exit() noexcept {
    BackgroundThread* const background = running();
    if (background == nullptr || ForkGuard::process().in_child()) {
        return;
    }
    background->stop();
    if (FileThread* const files = FileThread::running()) {
        files->finish(kFilesPatience);
    }
}

// The thread, and what it has begun.
void BackgroundThread::stop() noexcept {
    BackgroundThread* const background = this;
    // Making and measuring a lane takes longer than exit() waits: the thread would be inside NCCL
    // and CUDA while they are taken down.
    director::leave_off();
    const std::int64_t abort_deadline = cuda::host_now() + kExitDeadline;
    const auto until = deadline_in(kExitDeadline);
    {
        Monitor::Lock lock(background->monitor_);
        background->stop_ = true;
        lock.notify();
        while (!background->finished_ && lock.wait_until(until)) {
        }
        if (!background->finished_) {
            return;  // it hangs in a driver call; the last periodic report stands
        }
    }
    live_.close();
    while (director::aborting() && cuda::host_now() < abort_deadline) {
        const timespec pause{0, 1'000'000};
        ::nanosleep(&pause, nullptr);
    }
    try {
        background->drain();
        for (auto& [device, rank] : background->ranks_) {
            rank.track.settle();
        }
        while (!background->report(true) && cuda::host_now() < abort_deadline) {
        }
        background->say_job_line();
    } catch (...) {
    }
}

}  // namespace deft
