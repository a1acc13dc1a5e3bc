// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/communicator.h"

#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/hot_path.h"
#include "base/link_stats.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/presence.h"
#include "shim/control/director.h"
#include "shim/control/directors.h"
#include "shim/cuda/event_pool.h"
#include "shim/hooks/councils.h"
#include "shim/hooks/group.h"
#include "shim/hooks/held_call.h"
#include "shim/hooks/rendezvous.h"
#include "shim/hooks/unfinished_children.h"
#include "shim/runtime/background_thread.h"
#include "shim/settings/mode.h"
#include "shim/settings/settings.h"

namespace deft::communicator {
namespace {

// No count of splits reaches it, so no split has the name of a shrunk communicator.
constexpr std::uint64_t kShrunk = ~std::uint64_t{0};
constexpr std::uint64_t kResumed = ~std::uint64_t{1};

// How often each communicator was shrunk to the same survivors. All of those, and they alone, make
// each of these shrinks: their counts are equal, whatever the others do meanwhile. A count of all
// its shrinks would not be, and not one that the splits share, which the excluded ranks make too.
class Shrinks {
public:
    static Shrinks& process() {
        static auto& shrinks = *new Shrinks;  // never destroyed: threads may outlive exit()
        return shrinks;
    }
    // How many there were before this one.
    std::uint64_t next(std::uint32_t parent, std::uint64_t survivors) {
        const MutexLock lock(mutex_);
        return made_[{parent, survivors}]++;
    }
    void forget(std::uint32_t parent) noexcept {
        const MutexLock lock(mutex_);
        made_.erase(made_.lower_bound({parent, 0}), made_.upper_bound({parent, ~std::uint64_t{0}}));
    }

private:
    Mutex mutex_;
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> made_ DEFT_GUARDED_BY(mutex_);
};

// When the call that makes this thread's next communicators was made.
thread_local std::int64_t t_began_ns = 0;

// NULL: nothing is planned for this communicator.
director::Director* director_of(Hook& hook) {
    return hook.communicator() && hook.watched()
               ? hook.communicator()->director.load(std::memory_order_acquire)
               : nullptr;
}

// What the job does with a communicator in a group comes after the call it has made in it.
void forward_held(const Hook& hook) {
    if (hook.watched()) {
        held::forward();
    }
}

bool usable(int result) {
    return result == DEFT_NCCL_SUCCESS || result == DEFT_NCCL_IN_PROGRESS;
}

// What another thread that ends the communicator has not seen any more.
void leave_if_ended(Communicator& entry) {
    if (entry.handle.load() == nullptr) {
        councils::leave(entry);
    }
}

// Of one that was suspended: like a child of itself, with all its ranks.
void plan_again(Hook& hook) {
    Communicator* const entry = hook.watched() ? hook.communicator().get() : nullptr;
    agreement::Council* const origin =
        entry != nullptr ? entry->origin.load(std::memory_order_acquire) : nullptr;
    if (origin == nullptr || entry->council.load(std::memory_order_acquire) != nullptr) {
        return;
    }
    const std::uint64_t name =
        fnv64_mix(fnv64_mix(entry->hash.load(std::memory_order_relaxed), kResumed),
                  entry->suspensions.load(std::memory_order_relaxed));
    agreement::CouncilRef council =
        rendezvous::inherit(*origin, name, hook.table()->version, entry->nranks, entry->rank,
                            entry->network.load(std::memory_order_acquire));
    councils::put(entry->council, council);
    if (council) {
        council->created();
        director::introduce(*entry, council.get());
    }
    leave_if_ended(*entry);
}

// A job whose calls were planned may not notice that they are not any more.
void tell_grown(Hook& hook) {
    director::Director* const director = director_of(hook);
    if (director != nullptr && director->facts().switched > 0) {
        DEFT_WARN_ONCE(
            "nothing is planned for communicators that ncclCommGrow makes, though it was for the "
            "smaller one: the ranks that join cannot agree with those that were there");
    }
}

}  // namespace

std::uint64_t hash_of(const deft_nccl_unique_id_t& id) noexcept {
    return fnv64(id.internal, sizeof(id.internal));
}

std::uint64_t local_hash() noexcept {
    static std::atomic<std::uint64_t> made{0};
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return fnv64_mix(fnv64_mix(fnv64_mix(kFnv64Basis, made.fetch_add(1)),
                               static_cast<std::uint64_t>(::getpid())),
                     static_cast<std::uint64_t>(now.tv_sec) * 1000000000u +
                         static_cast<std::uint64_t>(now.tv_nsec));
}

std::uint64_t split_hash(Hook& hook, std::uint64_t color) noexcept {
    if (!hook.communicator()) {
        return 0;
    }
    const std::uint64_t parent = hook.communicator()->hash.load(std::memory_order_relaxed);
    const std::uint64_t index = hook.communicator()->splits.fetch_add(1);
    return parent == 0 ? 0 : fnv64_mix(fnv64_mix(parent, index), color);
}

std::uint64_t shrunk_hash(Hook& hook, const int* excluded, int count) noexcept {
    Communicator* const entry = hook.communicator().get();
    if (entry == nullptr || !hook.watched() || !ask_details(*entry)) {
        return 0;
    }
    const std::uint64_t parent = entry->hash.load(std::memory_order_relaxed);
    if (parent == 0 || excluded == nullptr || count <= 0 || count >= entry->nranks.load()) {
        return 0;  // the library refuses it
    }
    try {
        std::vector<int> gone(excluded, excluded + count);
        std::sort(gone.begin(), gone.end());
        gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
        std::uint64_t survivors = fnv64_mix(parent, kShrunk);
        for (const int rank : gone) {
            survivors = fnv64_mix(survivors, static_cast<std::uint64_t>(rank));
        }
        return fnv64_mix(survivors, Shrinks::process().next(entry->serial, survivors));
    } catch (...) {
        return 0;
    }
}

int starting(const Hook& hook, Function function) noexcept {
    // Before, not after: the plugin's init runs inside the call and looks at this.
    Presence& presence = Presence::process();
    if (plans(shim_mode()) && director::tuner_allowed()) {
        presence.tunes.store(true, std::memory_order_release);
    }
    presence.communicators_seen.fetch_add(1, std::memory_order_release);
    t_began_ns = cuda::host_now();
    forward_held(hook);
    counted(hook, function);
    if (hook.watched()) {
        councils::release_unknown();
    }
    if (!shim_required()) {
        return DEFT_NCCL_SUCCESS;
    }
    const char* reason = shim_refusal();
    if (reason == nullptr && NcclLibraries::process().override_failed()) {
        reason = "DEFT_NCCL_LIB cannot be used";
    }
    if (reason == nullptr && hook.watched() && !BackgroundThread::start()) {
        reason = "the observer of calls cannot start";
    }
    if (reason != nullptr) {
        DEFT_WARN("DEFT_REQUIRE=1: the communicator fails because %s (see the message above)",
                  reason);
        return DEFT_NCCL_INVALID_ARGUMENT;
    }
    return DEFT_NCCL_SUCCESS;
}

int made(const Hook& hook, deft_nccl_comm_t* comm, std::uint64_t hash, int rank, int nranks,
         const job_network::Config& config, int result, agreement::CouncilRef council) noexcept {
    return group::made({comm,
                        hook.table(),
                        hash,
                        rank,
                        nranks,
                        hook.watched(),
                        std::move(council),
                        {},
                        0,
                        config.network(),
                        config.shares(),
                        config.choices(),
                        t_began_ns},
                       result);
}

int made_from(Hook& hook, agreement::CouncilRef parent, deft_nccl_comm_t* child, std::uint64_t hash,
              const job_network::Config& config, int result) noexcept {
    const std::uint32_t serial = hook.communicator() ? hook.communicator()->serial.load() : 0;
    return group::made({child,
                        hook.table(),
                        hash,
                        -1,
                        -1,
                        hook.watched(),
                        {},
                        std::move(parent),
                        serial,
                        config.network(),
                        config.shares(),
                        config.choices(),
                        t_began_ns},
                       result);
}

int grown(Hook& hook, deft_nccl_comm_t* comm, int rank, int nranks,
          const job_network::Config& config, int result) noexcept {
    if (usable(result)) {
        tell_grown(hook);
    }
    return group::made({comm,
                        hook.table(),
                        0,
                        rank,
                        nranks,
                        false,
                        {},
                        {},
                        0,
                        config.network(),
                        config.shares(),
                        config.choices(),
                        t_began_ns},
                       result);
}

agreement::CouncilRef council_of(Hook& hook) noexcept {
    return hook.watched() && hook.communicator() ? councils::at(hook.communicator()->council)
                                                 : agreement::CouncilRef();
}

bool ask_details(Communicator& communicator) noexcept {
    if (communicator.details_known()) {
        return true;
    }
    // A nonblocking communicator answers once it is ready; one that never does must not cost more
    // than this.
    constexpr std::uint32_t kMaxAsked = 1000;
    const NcclTable* const table = communicator.table.load(std::memory_order_acquire);
    const deft_nccl_comm_t comm = communicator.handle.load(std::memory_order_acquire);
    if (comm == nullptr || table->CommUserRank == nullptr || table->CommCount == nullptr ||
        table->CommCuDevice == nullptr || communicator.asked.fetch_add(1) >= kMaxAsked) {
        return false;
    }
    // NCCL warns when a communicator that is not ready is asked anything but this.
    int state = DEFT_NCCL_SUCCESS;
    if (table->CommGetAsyncError != nullptr &&
        (table->CommGetAsyncError(comm, &state) != DEFT_NCCL_SUCCESS ||
         state != DEFT_NCCL_SUCCESS)) {
        return false;
    }
    int rank = -1;
    int nranks = -1;
    int device = -1;
    if (table->CommUserRank(comm, &rank) != DEFT_NCCL_SUCCESS ||
        table->CommCount(comm, &nranks) != DEFT_NCCL_SUCCESS ||
        table->CommCuDevice(comm, &device) != DEFT_NCCL_SUCCESS) {
        return false;
    }
    communicator.rank = rank;
    communicator.nranks = nranks;
    communicator.device = device;
    if (const std::int64_t began = communicator.began_ns.load(std::memory_order_relaxed)) {
        communicator.made_in_ns = cuda::host_now() - began;
    }
    if (const agreement::CouncilRef parent = councils::take(communicator.parent)) {
        councils::put(communicator.council,
                      rendezvous::inherit(*parent, communicator.hash, table->version, nranks, rank,
                                          communicator.network.load(std::memory_order_acquire)));
    }
    if (agreement::Council* const council = communicator.council.load(std::memory_order_acquire)) {
        council->created();  // a nonblocking one: it is only now
    }
    cuda::Driver::get();  // the library has made a communicator, so it is loaded by now
    if (BackgroundThread* const background = BackgroundThread::running()) {
        background->know(communicator);
    }
    director::introduce(communicator, communicator.council.load(std::memory_order_acquire));
    leave_if_ended(communicator);
    return true;
}

DEFT_NO_ARRAYS const Communicator* known(Hook& hook, deft_nccl_comm_t comm) noexcept {
    if (!hook.communicator()) {
        hook.adopt(Registry::process().add(comm, hook.table(), 0, -1, -1));
    }
    Communicator* const entry = hook.communicator().get();
    if (entry != nullptr && !entry->details_known()) {
        ask_details(*entry);
    }
    return entry;
}

bool ending(Hook& hook, deft_nccl_comm_t comm, Function function) noexcept {
    counted(hook, function);
    if (hook.watched() && hook.communicator()) {
        // First of all: a thread that waits for the others' decision in a hook is let go.
        councils::leave(*hook.communicator().get());
        councils::release_unknown();
    }
    if (BackgroundThread* const background = BackgroundThread::running();
        background != nullptr && hook.watched()) {
        background->request_report();
    }
    Communicator* const entry = hook.communicator().get();
    if (entry == nullptr) {
        return true;
    }
    // Last of all, so that the library hears of both in the order of the job's calls.
    auto before = Communicator::Ended::No;
    const bool destroy = function == Function::CommDestroy;
    entry->ended.compare_exchange_strong(
        before, destroy ? Communicator::Ended::Destroyed : Communicator::Ended::Aborted);
    if (destroy && before == Communicator::Ended::Aborted) {
        return false;
    }
    if (hook.watched()) {
        Shrinks::process().forget(entry->serial);
        UnfinishedChildren::process().forget(entry->serial);
    }
    const bool first = Registry::process().remove(comm, entry);
    if (hook.watched()) {
        councils::leave(*entry);  // what another hook has put there since
    }
    if (first) {
        return true;
    }
    // A destroy that is inside the library already may be waiting there for this abort. Unless it
    // is over, and the address another communicator's.
    return !destroy && before == Communicator::Ended::Destroyed && !Registry::process().find(comm);
}

void stop_planning(Hook& hook, bool abort) noexcept {
    forward_held(hook);
    auto before = Communicator::Ended::No;
    if (hook.communicator() && abort &&
        !hook.communicator()->ended.compare_exchange_strong(before, Communicator::Ended::Aborted) &&
        before == Communicator::Ended::Destroyed) {
        return;
    }
    if (auto* const director = director_of(hook)) {
        director->end(abort);
    }
}

void lanes_aborted(Hook& hook) noexcept {
    auto* const director = director_of(hook);
    // Inside a group NCCL may not have aborted the job's own communicators yet.
    if (director != nullptr && group::depth() == 0) {
        director->await_aborts();
    }
}

void finalizing(Hook& hook) noexcept {
    forward_held(hook);
    if (auto* const director = director_of(hook)) {
        director->finalize();
    }
}

int finalized(Hook& hook, int result) noexcept {
    auto* const director = result == DEFT_NCCL_IN_PROGRESS ? director_of(hook) : nullptr;
    if (director != nullptr) {
        director->finalize_goes_on();
    }
    return result;
}

void suspending(Hook& hook) noexcept {
    passing(hook, Function::CommSuspend);
    Communicator* const entry = hook.watched() ? hook.communicator().get() : nullptr;
    if (entry == nullptr) {
        return;
    }
    const bool known = ask_details(*entry);
    entry->suspensions.fetch_add(1, std::memory_order_relaxed);
    if (auto* const director = entry->director.exchange(nullptr, std::memory_order_acq_rel)) {
        director->suspend();
    }
    if (known && entry->origin.load(std::memory_order_acquire) == nullptr) {
        councils::put(entry->origin, councils::take(entry->council));
    } else {
        councils::leave(*entry, entry->council);
    }
}

int suspended(Hook& hook, int result) noexcept {
    if (!usable(result)) {
        plan_again(hook);
    }
    return result;
}

int resumed(Hook& hook, int result) noexcept {
    if (usable(result)) {
        plan_again(hook);
    }
    return result;
}

void cutting(Hook& hook) noexcept {
    forward_held(hook);
    if (auto* const director = director_of(hook)) {
        director->cut();
    }
}

void storing(const Hook& hook, deft_nccl_comm_t* where, int count) noexcept {
    UnfinishedChildren& children = UnfinishedChildren::process();
    // In a forked child another thread may have held its lock for ever.
    if (hook.watched() && !children.none() && where != nullptr) {
        children.reused(where, count);
    }
}

int merge_async_error(Hook& hook, int result, std::uint64_t begun, int* error) noexcept {
    const bool merges = result == DEFT_NCCL_SUCCESS && error != nullptr;
    if (merges && *error != DEFT_NCCL_IN_PROGRESS && hook.watched() && hook.communicator()) {
        UnfinishedChildren& children = UnfinishedChildren::process();
        if (!children.none()) {
            children.parent_done(hook.communicator()->serial.load(std::memory_order_relaxed), begun,
                                 *error);
        }
    }
    if (auto* const director = merges ? director_of(hook) : nullptr) {
        *error = director->merge_async_error(*error);
    }
    return result;
}

void tell_about_plugin() noexcept {
    static std::atomic_flag said = ATOMIC_FLAG_INIT;
    // Where NCCL's IB carries the job, it is asked for lanes alone.
    if (!Presence::process().job_on_ib.load() && Presence::process().plugin_inits.load() == 0 &&
        LinkStats::process().plugin_calls == 0 && !said.test_and_set(std::memory_order_relaxed)) {
        DEFT_INFO(
            "the hooks are at work, but NCCL has not loaded deft as its network plugin; to use "
            "it set NCCL_NET_PLUGIN=deft, or start the job with `deft run`");
    }
}

void passing(const Hook& hook, Function function) noexcept {
    forward_held(hook);
    counted(hook, function);
}

void counted(const Hook& hook, Function function) noexcept {
    if (hook.watched()) {
        BackgroundThread::count(function);
    }
}

}  // namespace deft::communicator
