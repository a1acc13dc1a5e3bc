// SPDX-License-Identifier: Apache-2.0
#include "shim/control/directors.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "shim/control/director.h"
#include "shim/cuda/driver.h"
#include "shim/settings/mode.h"

namespace deft::director {
namespace {

struct Directors {
    Mutex mutex;
    std::vector<Director*> alive DEFT_GUARDED_BY(mutex);
    // Told of no more, and known to nobody: the background thread frees them.
    std::vector<Director*> over DEFT_GUARDED_BY(mutex);
    int readers DEFT_GUARDED_BY(mutex) = 0;      // threads that ask directors without the lock
    deft_stats_t told DEFT_GUARDED_BY(mutex){};  // by those
};

Directors& process() {
    static auto& directors = *new Directors;  // never destroyed: threads may outlive exit()
    return directors;
}

// All of them, to be asked without the lock: one may let its caller wait a moment, and the others
// are the job's. None is freed while this lives.
class Reading {
public:
    explicit Reading(deft_stats_t& told) {
        Directors& directors = process();
        const MutexLock lock(directors.mutex);
        all_ = directors.alive;
        told = directors.told;
        ++directors.readers;
    }
    ~Reading() {
        Directors& directors = process();
        const MutexLock lock(directors.mutex);
        --directors.readers;
    }
    Reading(const Reading&) = delete;
    const std::vector<Director*>& all() const { return all_; }

private:
    std::vector<Director*> all_;
};

void add(deft_stats_t& stats, const PlanFacts& facts) noexcept {
    stats.switched += facts.switched;
    stats.ended += facts.ended;
    stats.iterations += facts.iterations;
    stats.executed_calls += facts.executed;
    stats.forwarded_calls += facts.forwarded;
    stats.launched_bytes += facts.launched_bytes;
    stats.delivered += facts.delivered;
    stats.zeroed_calls += facts.zeroed;
    stats.dropped += facts.dropped;
    stats.guard_decisions += facts.guard_decisions;
}

// Not those that are over and may be known still: an abort is cleaned up behind.
void set_aside_unknown(Directors& directors) DEFT_REQUIRES(directors.mutex) {
    auto& alive = directors.alive;
    const auto unknown = std::stable_partition(alive.begin(), alive.end(),
                                               [](const Director* d) { return !d->unknown(); });
    directors.over.insert(directors.over.end(), unknown, alive.end());
    for (auto each = unknown; each != alive.end(); ++each) {
        add(directors.told, (*each)->facts());
    }
    alive.erase(unknown, alive.end());
}

// Where a process has several ranks, each has a device and a thread of its own, and what one asks
// for concerns its communicators alone. kAnyDevice where it cannot be told which those are.
constexpr int kAnyDevice = -1;

int device_here(const Directors& directors) DEFT_REQUIRES(directors.mutex) {
    const auto& alive = directors.alive;
    const int first = alive.empty() ? kAnyDevice : alive.front()->info().device;
    // The driver is not asked where the answer would change nothing, as in a process with one rank.
    if (std::all_of(alive.begin(), alive.end(), [first](const Director* director) {
            return director->info().device == first;
        })) {
        return kAnyDevice;
    }
    const int device = cuda::current_device();
    for (const Director* const director : alive) {
        if (device >= 0 && director->info().device == device) {
            return device;
        }
    }
    return kAnyDevice;
}

bool is_on(const Director& director, int device) {
    const int own = director.info().device;  // below 0: not known
    return device == kAnyDevice || own < 0 || own == device;
}

}  // namespace

void introduce(Communicator& communicator, agreement::Council* council) noexcept {
    if (council == nullptr || !plans(shim_mode()) || communicator.nranks.load() < 2 ||
        communicator.director.load(std::memory_order_acquire) != nullptr) {
        return;
    }
    try {
        CommunicatorInfo info;
        info.entry = &communicator;
        info.comm = communicator.handle;
        info.table = communicator.table;
        info.serial = communicator.serial;
        info.hash = communicator.hash;
        info.rank = communicator.rank;
        info.nranks = communicator.nranks;
        info.device = communicator.device;
        std::copy(communicator.numbered_calls.begin(), communicator.numbered_calls.end(),
                  info.calls.begin());
        info.tuned_calls = communicator.tuned_calls;
        info.network = communicator.network;
        info.limits = tuning::read_job_limits();
        if (const ConfigChoices* const choices = communicator.choices) {
            info.choices = *choices;
        }
        info.made_in_ns = communicator.made_in_ns;
        Directors& directors = process();
        const MutexLock lock(directors.mutex);
        if (communicator.director.load(std::memory_order_acquire) != nullptr) {
            return;
        }
        // Those that have ended stay for the last report, within reason.
        constexpr std::size_t kListed = 64;
        if (directors.alive.size() >= kListed) {
            set_aside_unknown(directors);
        }
        directors.alive.reserve(directors.alive.size() + 1);
        auto* const director = new Director(info, *council);
        for (Director* const other : directors.alive) {
            if (!other->ended() && other->info().device == info.device) {
                director->has_others();
                other->has_others();
            }
            if (info.hash != 0 && other->info().hash == info.hash && !other->ended()) {
                director->share_process();
                other->share_process();
            }
        }
        directors.alive.push_back(director);
        communicator.director.store(director, std::memory_order_release);
    } catch (...) {
        // Without a director every call is forwarded; the other ranks hear no answer and do the
        // same.
    }
}

void clean_up() noexcept {
    std::size_t i = 0;
    std::vector<Director*> unknown;
    for (;;) {
        Director* director = nullptr;
        {
            Directors& directors = process();
            const MutexLock lock(directors.mutex);
            if (i >= directors.alive.size()) {
                if (directors.readers == 0) {
                    unknown.swap(directors.over);
                }
                break;
            }
            director = directors.alive[i++];
        }
        director->clean_up_behind();
    }
    for (Director* const director : unknown) {
        delete director;
    }
}

bool tick(int device, Track& track, std::span<const tuning::SeenCall> seen) noexcept {
    bool any = false;
    std::size_t i = 0;
    for (;;) {
        Director* director = nullptr;
        {
            Directors& directors = process();
            const MutexLock lock(directors.mutex);
            if (i >= directors.alive.size()) {
                return any;
            }
            director = directors.alive[i++];
        }
        if (director->info().device == device && !director->over()) {
            any = director->tick(track, seen) || any;  // may take long: without the lock
        }
    }
}

void leave_off() noexcept {
    Directors& directors = process();
    const MutexLock lock(directors.mutex);
    for (Director* const director : directors.alive) {
        director->leave_off();
    }
}

bool aborting() noexcept {
    Directors& directors = process();
    const MutexLock lock(directors.mutex);
    return std::any_of(directors.alive.begin(), directors.alive.end(),
                       [](const Director* director) { return director->aborting(); });
}

bool should_step() noexcept {
    bool zeros = false;
    bool sums = false;
    Directors& directors = process();
    const MutexLock lock(directors.mutex);
    const int device = device_here(directors);
    for (Director* const director : directors.alive) {
        if (!is_on(*director, device)) {
            continue;
        }
        const Update update = director->take_update();
        zeros = zeros || update == Update::Zeros;
        sums = sums || update == Update::Sums;
    }
    return sums || !zeros;
}

int flush() noexcept {
    Directors& directors = process();
    const MutexLock lock(directors.mutex);
    const int device = device_here(directors);
    // All of them first: -1 says that nothing was done.
    for (Director* const director : directors.alive) {
        if (is_on(*director, device) && director->in_iteration()) {
            return -1;
        }
    }
    int dropped = 0;
    for (Director* const director : directors.alive) {
        const int own = is_on(*director, device) ? director->flush() : 0;
        if (own < 0) {
            return -1;
        }
        dropped += own;
    }
    return dropped;
}

bool late_in_force() noexcept {
    Directors& directors = process();
    const MutexLock lock(directors.mutex);
    const int device = device_here(directors);
    return std::any_of(
        directors.alive.begin(), directors.alive.end(),
        [device](Director* director) { return is_on(*director, device) && director->late(); });
}

void add_up(deft_stats_t& stats) noexcept {
    try {
        deft_stats_t sum{};
        const Reading reading(sum);
        for (Director* const director : reading.all()) {
            const PlanFacts facts = director->facts();
            sum.in_force += facts.state == "running" ? 1 : 0;
            add(sum, facts);
        }
        sum.size = stats.size;
        stats = sum;
    } catch (...) {
        // No memory for the list.
    }
}

std::vector<PlanFacts> facts(int device) {
    std::vector<PlanFacts> told;
    deft_stats_t ignored{};
    const Reading reading(ignored);
    for (Director* const director : reading.all()) {
        if (director->info().device == device) {
            told.push_back(director->facts());
        }
    }
    return told;
}

}  // namespace deft::director
